"""A FastAPI application that sweeps its own checkpoints while it runs.

    uvicorn examples.fastapi_lifespan:app

The sweeper starts and stops with the application. With several workers or replicas on
Postgres, ``enable_coordination=True`` lets one of them sweep at a time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import add
from typing import Annotated, TypedDict

from fastapi import FastAPI, HTTPException
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from langgraph_ephemeral_checkpointer import TTLPolicy, TTLSweeper

POLICY = TTLPolicy(idle_ttl_seconds=7 * 86_400)


class State(TypedDict):
    messages: Annotated[list[str], add]


def build(saver: AsyncSqliteSaver):
    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"messages": [state["messages"][-1].upper()]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    path = os.environ.get("THREADS_FILE", "threads.db")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        app.state.graph = build(saver)
        app.state.sweeper = TTLSweeper(saver, POLICY, max_delete_percent=50)
        await app.state.sweeper.start(interval_seconds=300)
        try:
            yield
        finally:
            await app.state.sweeper.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/threads/{thread_id}")
async def turn(thread_id: str, text: str) -> dict[str, list[str]]:
    config = {"configurable": {"thread_id": thread_id}}
    return await app.state.graph.ainvoke({"messages": [text]}, config)


@app.get("/threads/{thread_id}")
async def history(thread_id: str) -> dict[str, list[str]]:
    state = await app.state.graph.aget_state({"configurable": {"thread_id": thread_id}})
    if not state.values:
        raise HTTPException(404, "no such thread, or not any more")
    return state.values
