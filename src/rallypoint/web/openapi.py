"""The OpenAPI description of `/api/v1`, made from the types that are answered. PURE."""

from typing import Any

import msgspec

from rallypoint.rendezvous.reports.status import RunLine, RunStatus, ServerStatus, Status

_TEMPLATE = "#/components/schemas/{name}"
_UNAUTHORIZED = {"description": "the server's token was not shown (off loopback only)"}


def document() -> dict[str, Any]:
    """Return the description."""
    kinds = [Status, ServerStatus, RunStatus, tuple[RunLine, ...]]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    status, server, run, runs = schemas
    one = {"name": "run", "in": "query", "schema": {"type": "string"}, "description": "a run id"}
    path = {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string"}}
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Rallypoint",
            "version": "1",
            "description": "What the runs of a Rallypoint server are doing. Read-only.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {}],
        "paths": {
            "/api/v1/status": _get("status", "All runs, or one", status, [one]),
            "/api/v1/server": _get("server", "The server, and the list of its runs", server),
            "/api/v1/runs": _get("runs", "The list of runs", runs),
            "/api/v1/runs/{run_id}": _get("run", "One run", run, [path]),
            "/api/v1/events": _events(one),
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))  # no tuples
    return plain


def _get(
    name: str, summary: str, schema: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {"description": summary, "content": {"application/json": {"schema": schema}}},
        "401": _UNAUTHORIZED,
    }
    if parameters:
        answers["404"] = {"description": "there is no such run"}
        answers["503"] = {"description": "this server stands by; the error says who leads"}
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": answers}
    if parameters:
        operation["parameters"] = parameters
    return {"get": operation}


def _events(one: dict[str, Any]) -> dict[str, Any]:
    text = (
        "Server-sent events: `server` (ServerStatus), and of the run that is named `run` "
        "(RunStatus, without the names in `rounds`) and `rounds` (its `rounds` in full)"
    )
    answer = {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    operation = {
        "operationId": "events",
        "summary": "What happens, pushed",
        "parameters": [one],
        "responses": {"200": answer, "401": _UNAUTHORIZED, "503": {"description": "too many"}},
    }
    return {"get": operation}
