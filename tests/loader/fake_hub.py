"""A model hub of one repository, as far as huggingface_hub asks for it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from fake_http import FakeHttp, Reply

COMMIT = "1f2e3d4c5b6a79880716253443526170aabbccdd"
REPOSITORY = "tiny-org/tiny-model"
JSON = {"Content-Type": "application/json"}


@dataclass
class FakeRevision:
    commit: str
    files: dict[str, bytes]


def blob_id(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def publish(http: FakeHttp, revisions: dict[str, FakeRevision]) -> None:
    """Serve the repository with these branches; the largest files are LFS files named by SHA-256."""
    api = f"/api/models/{REPOSITORY}"
    refs = {
        "branches": [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": revision.commit}
            for name, revision in revisions.items()
        ],
        "tags": [],
        "converts": [],
    }
    http.pages[f"{api}/refs"] = lambda query: Reply(json.dumps(refs).encode(), headers=JSON)
    for name, revision in revisions.items():
        for known_as in (name, revision.commit):
            _publish_revision(http, known_as, revision)


def fail(http: FakeHttp, status: int, code: str) -> None:
    """Every question about the repository is answered with this error."""
    reply = Reply(b"{}", status, {"X-Error-Code": code, **JSON})
    for path in (f"/api/models/{REPOSITORY}/revision/main", f"/api/models/{REPOSITORY}"):
        http.pages[path] = lambda query: reply


def _publish_revision(http: FakeHttp, known_as: str, revision: FakeRevision) -> None:
    siblings = [{"rfilename": name, "size": len(content)} for name, content in revision.files.items()]
    info = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": revision.commit, "siblings": siblings}
    tree = [_tree_entry(name, content) for name, content in revision.files.items()]
    pages = {
        f"/api/models/{REPOSITORY}/revision/{known_as}": Reply(json.dumps(info).encode(), headers=JSON),
        f"/api/models/{REPOSITORY}/tree/{known_as}": Reply(json.dumps(tree).encode(), headers=JSON),
    }
    for path, reply in pages.items():
        http.pages[path] = lambda query, reply=reply: reply  # type: ignore[misc]
    for name, content in revision.files.items():
        etag = hashlib.sha256(content).hexdigest() if _is_large(name) else blob_id(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": revision.commit, "Accept-Ranges": "bytes"}
        http.files[f"/{REPOSITORY}/resolve/{known_as}/{name}"] = Reply(content, headers=headers)


def _tree_entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": blob_id(content)}
    if _is_large(name):
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
    return entry


def _is_large(name: str) -> bool:
    return name.endswith(".safetensors")
