"""A pet shop as petstore.yaml describes it, over HTTP, with keys; and what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from toolcrib.bridges.openapi import ApiServer

DOCUMENT = Path(__file__).parent / "petstore.yaml"
KEY, TOKEN = "canary-key-5e1c", "canary-token-77ab"
KEYS = {"api_key": KEY, "petstore_auth": TOKEN}


class Petstore:
    """Remembers its pets, and the answers that it gave under an `Idempotency-Key`."""

    def __init__(self) -> None:
        self.pets: dict[int, dict[str, Any]] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.asked: list[web.Request] = []
        self.forms: list[dict[str, Any]] = []
        self.added = 0

    async def add(self, request: web.Request) -> web.StreamResponse:
        said = await request.json()
        if said["name"] == "Cerberus":
            told = f"no {said['name']}, and {request.headers['Authorization']} will not help"
            return web.json_response({"message": told}, status=400)
        if said["name"] == "Nessie":
            return web.json_response({"ticket": "n-1"}, status=202)
        if said["name"] == "Schrödinger":
            return web.json_response({"ticket": "n-1"}, status=201)
        key = request.headers["Idempotency-Key"]
        if key not in self.given:
            self.added += 1
            self.given[key] = self.pets[self.added] = {**said, "id": self.added}
        if said["name"] == "Houdini":
            assert request.transport is not None
            request.transport.abort()
        if said["name"] == "Sloth":
            await asyncio.sleep(5)
        return web.json_response(self.given[key], status=201)

    async def find(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.getall("status", [])
        found = [one for one in self.pets.values() if not wanted or one.get("status") in wanted]
        size = int(request.query.get("page[size]", "99"))
        return web.json_response(found[:size])

    async def pet(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["id"])
        if number not in self.pets:
            return web.json_response({"message": f"there is no pet {number}"}, status=404)
        match request.method:
            case "PUT":
                self.pets[number] = {**await request.json(), "id": number}
            case "POST":
                self.pets[number] |= dict(await request.post())
                return web.Response(status=204)
            case "DELETE":
                del self.pets[number]
                return web.Response(status=204)
        return web.json_response(self.pets[number])

    async def photo(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        data = file.file.read()
        said = {"caption": form.get("caption"), "tags": form.getall("tags", []), "file": data}
        self.forms.append(said)
        return web.json_response({"bytes": len(data)})

    async def inventory(self, _: web.Request) -> web.StreamResponse:
        counts: dict[str, int] = {}
        for pet in self.pets.values():
            counts[pet.get("status", "unknown")] = counts.get(pet.get("status", "unknown"), 0) + 1
        return web.json_response(counts)

    async def login(self, request: web.Request) -> web.StreamResponse:
        said = await request.json()
        if said["password"] != "open sesame":
            return web.Response(text=f"{said['password']} is wrong", status=422)
        return web.Response(text=f"welcome, {said['name']}")

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> Any:
        self.asked.append(request)
        given = request.headers.get("api_key"), request.headers.get("Authorization")
        if (
            not request.path.endswith("/login")
            and KEY not in given
            and f"Bearer {TOKEN}" not in given
        ):
            return web.Response(status=401)
        return await handler(request)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.guard])
        app.router.add_post("/v3/pet", self.add)
        app.router.add_get("/v3/pet/findByStatus", self.find)
        app.router.add_route("*", "/v3/pet/{id}", self.pet)
        app.router.add_post("/v3/pet/{id}/photo", self.photo)
        app.router.add_get("/v3/store/inventory", self.inventory)
        app.router.add_post("/v3/user/login", self.login)
        return app


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """The origin of a server of this application, on this machine."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def petstore() -> AsyncIterator[tuple[Petstore, ApiServer]]:
    """The shop, and the server as its author names it."""
    shop = Petstore()
    async with serving(shop.app()) as origin:
        yield shop, ApiServer(f"{origin}/v3", keys=KEYS)
