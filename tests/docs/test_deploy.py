"""The files of docs/deploy and the examples: readable for their tools, and running."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_ephemeral_checkpointer.cli.app import Program
from langgraph_ephemeral_checkpointer.cli.arguments import Chosen, choose, read
from langgraph_ephemeral_checkpointer.rules import load_rules
from langgraph_ephemeral_checkpointer.rules.reading import read_toml
from tests.support.program import ROOT, environment, put, threads_in

DEPLOY = ROOT / "docs" / "deploy"
DAY = 86_400


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def understood(words):
    chosen = choose(Program, words)
    assert isinstance(chosen, Chosen)
    return read(chosen)


def containers():
    deployment = documents("kubernetes-sidecar.yaml")[1]
    yield deployment["spec"]["template"]["spec"]["containers"][0]
    (cron,) = documents("kubernetes-cronjob.yaml")
    yield cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.yaml")), ids=lambda path: path.name)
def test_yaml_can_be_read(path):
    assert documents(path.name)


def test_the_arguments_of_every_container_are_understood():
    for container in containers():
        assert understood(container["args"])
    compose = documents("compose.yaml")[0]["services"]["sweeper"]
    assert understood(compose["command"]).metrics_port == 9464


def test_every_kubernetes_object_is_whole():
    for name in ("kubernetes-sidecar.yaml", "kubernetes-cronjob.yaml"):
        for one in documents(name):
            assert {"apiVersion", "kind", "metadata"} <= set(one)
    _, deployment = documents("kubernetes-sidecar.yaml")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    container = pod["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == understood(container["args"]).metrics_port


def test_every_rules_file_is_right():
    load_rules(DEPLOY / "ephemeral.toml")
    config, _ = documents("kubernetes-sidecar.yaml")
    assert read_toml(config["data"]["ephemeral.toml"])[1] == []


def test_the_unit_starts_a_command_that_is_understood():
    lines = (DEPLOY / "checkpoint-retention.service").read_text().splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    _, program, *words = start.partition("=")[2].split()
    assert program == "langgraph-ephemeral-checkpointer"
    assert understood(words)


ANALYZE = [tool] if (tool := shutil.which("systemd-analyze")) else []


@pytest.mark.parametrize("analyze", [*ANALYZE, None][:1])
def test_systemd_finds_nothing_wrong_with_the_unit(analyze, tmp_path):
    """Where systemd is not there, the lines are looked at."""
    unit = tmp_path / "checkpoint-retention.service"
    shutil.copy(DEPLOY / unit.name, unit)
    if analyze is None:
        sections = [line for line in unit.read_text().splitlines() if line.startswith("[")]
        assert sections == ["[Unit]", "[Service]", "[Install]"]
        return
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_guide_names_every_option_and_every_metric():
    """What is not in the guide does not exist for the people who need it."""
    from prometheus_client import CollectorRegistry

    from langgraph_ephemeral_checkpointer.metrics import SweepMetrics

    guide = (ROOT / "docs" / "operations.md").read_text()
    for name in ("run", "check", "compact"):
        for option in Program.subcommands()[name].options().values():
            assert option.display_name in guide, option.display_name
    registry = CollectorRegistry()
    SweepMetrics(registry)
    for metric in registry.collect():
        assert metric.name in guide, metric.name


def test_the_rules_in_the_guide_are_right():
    guide = (ROOT / "docs" / "operations.md").read_text()
    blocks = [part.partition("```")[0] for part in guide.split("```toml\n")[1:]]
    assert blocks
    for block in blocks:
        assert read_toml(block)[1] == []


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks annotations up there
    spec.loader.exec_module(module)
    return module


async def test_the_fastapi_example_sweeps_while_it_serves(tmp_path, monkeypatch):
    from httpx import ASGITransport, AsyncClient

    path = tmp_path / "threads.db"
    monkeypatch.setenv("THREADS_FILE", str(path))
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["old"], age_seconds=8 * DAY)
        put(saver, ["young"])
    app = example("fastapi_lifespan").app
    async with app.router.lifespan_context(app):
        deadline = time.monotonic() + 30
        async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
            for text in ("hello", "again"):
                answer = await client.post("/threads/new", params={"text": text})
                assert answer.status_code == 200
            assert answer.json()["messages"] == ["hello", "HELLO", "again", "AGAIN"]
            assert (await client.get("/threads/new")).status_code == 200
            while "old" in threads_in(path):
                assert time.monotonic() < deadline
                assert (await client.get("/threads/nobody")).status_code == 404
    assert threads_in(path) == {"young", "new"}


def test_the_scheduled_example_sweeps_by_the_rules(tmp_path):
    path, rules = tmp_path / "threads.db", tmp_path / "rules.toml"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["old", "legal-1"], age_seconds=8 * DAY)
        put(saver, ["young", "younger"])
    rules.write_text('[policy]\nidle_ttl = "7d"\n[[rules]]\nmatch = "legal-*"\nexempt = true\n')
    words = [sys.executable, str(ROOT / "examples" / "scheduled_task.py")]
    done = subprocess.run(
        words,
        env=environment(THREADS_FILE=str(path), RULES=str(rules)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"deleted": 1, "kept": 0, "left": 0}
    assert threads_in(path) == {"legal-1", "young", "younger"}
    rules.write_text('[policy]\nidle_ttl = "1s"\n')
    with SqliteSaver.from_conn_string(str(path)) as saver:
        put(saver, ["a", "b", "c", "d"], age_seconds=DAY)
    refused = subprocess.run(
        words,
        env=environment(THREADS_FILE=str(path), RULES=str(rules)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "refused" in refused.stderr
