"""Finding one file on a simple package index (PEP 503 HTML, PEP 691 JSON)."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

import httpx

from tandem.core.errors import DownloadError
from tandem.loader.download import describe_failure

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


def find_file(client: httpx.Client, index_url: str, project: str, filename: str) -> str:
    """The address of ``filename`` among the project's files.

    Raises DownloadError: the index cannot be reached, does not know the project, or lacks the file.
    """
    page_url = f"{index_url}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    shown = without_credentials(page_url)
    try:
        response = client.get(page_url, headers={"Accept": _ACCEPT})
    except httpx.HTTPError as error:
        raise DownloadError(
            f"The package index {shown} cannot be asked for the demo model",
            found=describe_failure(error),
            remedy="check the network, PIP_INDEX_URL and PIP_CERT, or pass --model",
        ) from error
    if response.status_code != 200:
        raise DownloadError(
            f"The package index {shown} has no project {project}",
            found=f"HTTP status {response.status_code}",
            remedy="set PIP_INDEX_URL to an index that mirrors the public one, or pass --model",
        )
    files = _list_files(response)
    if filename not in files:
        raise DownloadError(
            f"The package index {shown} does not list {filename}",
            found=f"{len(files)} other files",
            remedy="set PIP_INDEX_URL to an index that mirrors the public one, or pass --model",
        )
    return urljoin(str(response.url), files[filename])


def without_credentials(url: str) -> str:
    """The address without ``user:password@``, fit for a message."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _list_files(response: httpx.Response) -> dict[str, str]:
    """Address by file name; an answer that is neither form lists nothing."""
    if "json" in response.headers.get("content-type", ""):
        try:
            return {item["filename"]: item["url"] for item in response.json()["files"]}
        except (ValueError, KeyError, TypeError):
            return {}
    anchors = _Anchors()
    anchors.feed(response.text)
    links = [urldefrag(link).url for link in anchors.links]
    return {unquote(urlsplit(link).path.rpartition("/")[2]): link for link in links}


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
