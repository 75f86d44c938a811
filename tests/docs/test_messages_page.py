"""The example of docs/messages.md runs, and prints what the page says it prints."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "messages.md").read_text(encoding="utf-8")


def test_the_first_example_prints_what_the_page_says(capsys):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    code = next(text for tag, text in blocks if tag == "python")
    said = next(text for tag, text in blocks if tag == "text")
    exec(compile(code, "docs/messages.md", "exec", dont_inherit=True), {"__name__": "page"})
    assert capsys.readouterr().out == said
