"""The headers of a hub model without its weights: ``config.json`` and range requests for each file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.errors import ModelDamagedError, ModelNotFoundError
from tandem.loader.base import TensorHeader
from tandem.loader.hub import (
    DEFAULT_REVISION,
    HubModel,
    HubOptions,
    ask_hub,
    from_cache,
    reported_by_hub,
    transport_error,
    unreachable,
    wanted_files,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class RemoteHeaders:
    """A checkpoint as far as planning needs it."""

    repository: str
    revision: str
    """The commit."""
    config: Mapping[str, object]
    headers: Mapping[str, TensorHeader]


def read_hub_headers(repository: str, revision: str | None, options: HubOptions) -> RemoteHeaders | HubModel:
    """Read what the hub says; offline or without a network, the copy in the cache if there is one.

    Raises ModelNotFoundError, ModelUnsupportedError, ModelDamagedError or DownloadError.
    """
    wanted = revision or DEFAULT_REVISION
    if options.offline:
        return from_cache(repository, wanted, options, "offline mode is set", None)
    from huggingface_hub import HfApi

    api = HfApi(endpoint=options.endpoint)
    with reported_by_hub(repository, wanted, api):
        try:
            info = ask_hub(api, repository, wanted)
        except transport_error() as error:
            return from_cache(repository, wanted, options, unreachable(api), error)
        sizes = wanted_files(info, repository, wanted, api)
        commit = info.sha or wanted
        if "config.json" not in sizes:
            raise ModelNotFoundError(f"{repository}@{wanted} holds no config.json")
        config = _config(api, repository, commit)
        weights = sorted(name for name in sizes if name.endswith(".safetensors"))
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            files = list(pool.map(lambda name: _file_headers(api, repository, commit, name), weights))
    headers: dict[str, TensorHeader] = {}
    for name, tensors in zip(weights, files, strict=True):
        twice = headers.keys() & tensors.keys()
        if twice:
            raise ModelDamagedError(
                f"Tensor {min(twice)} occurs twice",
                found=f"in {name} and another file of {repository}@{wanted}",
            )
        headers |= tensors
    return RemoteHeaders(repository, commit, config, headers)


def _config(api: HfApi, repository: str, commit: str) -> Mapping[str, object]:
    """``config.json``, without leaving a half-filled model in the shared cache."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    url = hf_hub_url(repository, "config.json", revision=commit, endpoint=api.endpoint)
    response = get_session().get(url, headers=build_hf_headers(token=api.token), follow_redirects=True)
    hf_raise_for_status(response)
    try:
        config = json.loads(response.content)
    except ValueError as error:
        raise ModelDamagedError(
            f"config.json of {repository}@{commit} cannot be read", found=str(error)
        ) from error
    if not isinstance(config, dict):
        raise ModelDamagedError(
            f"config.json of {repository}@{commit} is not a JSON object", found=type(config).__name__
        )
    return config


def _file_headers(api: HfApi, repository: str, commit: str, name: str) -> dict[str, TensorHeader]:
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = api.parse_safetensors_file_metadata(repository, name, revision=commit)
    except SafetensorsParsingError as error:
        raise ModelDamagedError(
            f"{name} of {repository}@{commit} has a damaged safetensors header",
            found=str(error).splitlines()[0],
        ) from error
    return {
        tensor: TensorHeader(
            tensor, info.dtype, tuple(info.shape), info.data_offsets[1] - info.data_offsets[0]
        )
        for tensor, info in found.tensors.items()
    }
