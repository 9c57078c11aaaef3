"""Writer of llms.txt, the list of all pages for language models. It comes from README.md and docs/index.md.

    python -m tools.llms

llmstxt.org defines the format: the name, one sentence, and lists of links with descriptions.
"""

import re
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]


def llms_text() -> str:
    """Return the text of llms.txt."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    title, summary = readme.split("\n\n", 2)[:2]
    lists = index[index.index("\n## ") :]
    links = re.sub(r"\]\(", "](docs/", lists)
    skills = [
        f"- [{path.parent.name}]({path.relative_to(ROOT)}): {_description(path)}"
        for path in sorted((ROOT / "skills").glob("*/SKILL.md"))
    ]
    quoted = " ".join(summary.split())
    more = ["- [AGENTS.md](AGENTS.md): how to work in this repository.", *skills]
    return f"{title}\n\n> {quoted}\n{links}\n## Coding agents\n\n" + "\n".join(more) + "\n"


def _description(skill: Path) -> str:
    """Return the description in a skill's front matter."""
    text = re.search(r"^description: (.*)$", skill.read_text(encoding="utf-8"), re.MULTILINE)
    return text[1] if text else ""


@click.command()
def llms() -> None:
    """Write llms.txt."""
    (ROOT / "llms.txt").write_text(llms_text(), encoding="utf-8")


if __name__ == "__main__":
    llms()
