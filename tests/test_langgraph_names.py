"""LangGraph's own names stand in one module, and are LangGraph's."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from langgraph.checkpoint.base import CheckpointMetadata
from langgraph.checkpoint.serde import jsonplus, types

import langgraph_ephemeral_checkpointer
from langgraph_ephemeral_checkpointer import langgraph_names as names

PACKAGE = Path(langgraph_ephemeral_checkpointer.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# What is told from any other text at sight, and the metadata keys, told by what stands before.
OWN = re.compile(
    "|".join(
        re.escape(name)
        for name in (
            names.DELTA_COUNTERS,
            names.DELTA_MARK,
            names.END,
            names.ERROR,
            names.ERROR_SOURCE_NODE,
            names.INTERRUPT,
            names.OVERWRITE,
            names.REMOVE_ALL,
            names.RESUME,
            names.RETURN,
            names.SCHEDULED,
            names.SNAPSHOT_CLASS,
            names.START,
            names.TASKS,
        )
    )
)
METADATA_KEY = re.compile(
    rf"""meta(data)?\b[^\n]{{0,12}}['"]({names.PARENTS}|{names.SOURCE}|{names.STEP})['"]"""
)
SAVERS = ("memory", "sqlite", "postgres")


class _NoDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        return ast.Expr(ast.Constant(...)) if isinstance(node.value, ast.Constant) else node


def _code_of(path: Path) -> str:
    """A module's source without its comments and docstrings."""
    tree = _NoDocstrings().visit(ast.parse(path.read_text(encoding="utf-8")))
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        ("langgraph.constants", "START", names.START),
        ("langgraph.constants", "END", names.END),
        ("langgraph._internal._constants", "RETURN", names.RETURN),
        ("langgraph._internal._constants", "ERROR_SOURCE_NODE", names.ERROR_SOURCE_NODE),
        ("langgraph._internal._constants", "NS_END", names.CALL_MARK),
        ("langgraph._internal._constants", "OVERWRITE", names.OVERWRITE),
        ("langgraph.graph.message", "REMOVE_ALL_MESSAGES", names.REMOVE_ALL),
    ],
)
def test_a_name_is_the_one_that_langgraph_has(module: str, name: str, ours: str) -> None:
    """Where this LangGraph has it: the oldest one knows no overwrite and no source of errors."""
    assert getattr(importlib.import_module(module), name, ours) == ours


def test_the_control_channels_include_all_whose_writes_langgraph_numbers_below_zero() -> None:
    from langgraph.checkpoint.base import WRITES_IDX_MAP

    assert set(WRITES_IDX_MAP) <= set(names.CONTROL_CHANNELS)


def test_the_metadata_keys_are_those_that_langgraph_declares() -> None:
    declared = set(CheckpointMetadata.__annotations__)
    assert {names.PARENTS, names.SOURCE, names.STEP} <= declared
    if hasattr(jsonplus, "EXT_DELTA_SNAPSHOT"):  # this LangGraph has delta channels
        assert names.DELTA_COUNTERS in declared
        assert hasattr(types, names.SNAPSHOT_CLASS)
        assert names.SNAPSHOT_CODE == jsonplus.EXT_DELTA_SNAPSHOT


def test_no_other_module_spells_out_a_name_of_langgraphs() -> None:
    found = []
    for path in MODULES:
        if path.name != "langgraph_names.py":
            code = _code_of(path)
            names_of_it = [one.group() for by in (OWN, METADATA_KEY) for one in by.finditer(code)]
            found += [f"{path.relative_to(PACKAGE)}: {name}" for name in names_of_it]
    assert not found, "langgraph_names has these names"


@pytest.mark.parametrize("room", ["common", "decisions", "engine", "messages", "drivers"])
def test_what_is_shared_by_all_storages_imports_the_saver_of_none(room: str) -> None:
    """The checker of imports knows packages, and all savers are in the package langgraph."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in found:
                assert not module.startswith(tuple(f"langgraph.checkpoint.{s}" for s in SAVERS)), (
                    f"{path}:{node.lineno}"
                )
