"""A durable counter as an engineer would write it by hand: FastAPI and aiosqlite, one transaction per call.

A call does the same work on the store as a call of Toolpack Server: it reads a session's state, and writes the new
state and a record.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import aiosqlite
from fastapi import FastAPI
from pydantic import BaseModel
from serving import serve

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE counters (session TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE records (session TEXT, place INTEGER, body TEXT, PRIMARY KEY (session, place));
"""
ADD_RECORD = """
INSERT INTO records VALUES (?1, (SELECT coalesce(max(place), -1) + 1 FROM records WHERE session = ?1), ?2)
"""


class Call(BaseModel):
    session: str
    amount: int


@asynccontextmanager
async def lifespan(app):
    async with aiosqlite.connect(sys.argv[2], isolation_level=None) as connection:
        await connection.executescript(SCHEMA)
        app.state.connection, app.state.turn = connection, asyncio.Lock()
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/call")
async def call(call: Call) -> dict[str, int]:
    async with app.state.turn:  # one connection, so that transactions of two calls don't mix
        connection = app.state.connection
        await connection.execute("BEGIN IMMEDIATE")
        rows = await connection.execute_fetchall("SELECT value FROM counters WHERE session = ?", (call.session,))
        value = (rows[0][0] if rows else 0) + call.amount
        await connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (call.session, value))
        record = json.dumps({"amount": call.amount, "result": value})
        await connection.execute(ADD_RECORD, (call.session, record))
        await connection.execute("COMMIT")
    return {"result": value}


serve(app)
