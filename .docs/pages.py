"""Which pages the site has: the guides where they stand, and a reference made of what the program says."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from fedattack.attacks.registry import THREATS
from fedattack.cli import app
from fedattack.cli.listing import listing
from fedattack.data import DATASETS
from fedattack.report.glossary import GLOSSARY
from fedattack.runs.settings import load_settings

ROOT = Path(__file__).parents[1]

LIBRARY = {
    "brief": ("In brief", "What `import fedattack` offers.", "fedattack.cli.library"),
    "observe": ("Observers", "What a server wraps around its strategy or its ServerApp.", "fedattack.observe"),
    "bridge": ("NumPyClient bridge", "A NumPyClient under the Message API.", "fedattack.observe.bridge"),
    "witness": ("Witnesses", "Code that notes on clients' machines who holds which example.", "fedattack.witness"),
    "defences": ("Defences", "What a client does so that its message reveals less.", "fedattack.defences"),
    "mods": ("Defences as mods", "Defences and checks in a client of the Message API.", "fedattack.defences.mods"),
    "wrapper": ("Defences of a NumPyClient", "Defences in a client without mods.", "fedattack.defences.wrapper"),
    "record": ("Records", "What a server saw: write, read, check and project it.", "fedattack.record"),
    "attacks": ("Attacks and knowledge", "What all attacks share.", "fedattack.attacks"),
    "truth": ("Truth", "Who holds what; only the judge sees it.", "fedattack.audit.truth"),
    "finding": ("Findings", "A measured number, with what is needed to judge it.", "fedattack.audit.finding"),
    "properties": ("Properties", "Questions that PROLIN asks.", "fedattack.threats.property.properties"),
    "claims": ("Claims", "Whether a declared ε is true.", "fedattack.claims"),
    "canaries": ("Canaries", "Clients and examples that measure a run's ε.", "fedattack.claims.canaries"),
}
"""By page: its title, what is there, and the module."""


WORDS = {
    "fedattack/claims/README.md": ["epsilon", "differential privacy"],
    "fedattack/threats/README.md": ["SecAgg", "secure aggregation"],
    "fedattack/threats/membership/README.md": ["membership"],
    "simulations/tutorials/own-app.md": ["my own app"],
}
"""By guide, what people search for who want it: the search puts it first."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write anchors as GitHub does, and put the pages that are made into the navigation."""
    config.markdown_extensions.append("toc")
    config.mdx_configs["toc"] = {"permalink": True, "slugify": slugify(case="lower")}
    sections = {
        "Commands": [f"reference/commands/{name}.md" for name in ("README", *commands())],
        "Library": [f"reference/library/{name}.md" for name in LIBRARY],
    }
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    for entry in reference:
        if isinstance(entry, dict):
            entry |= {name: sections[name] for name in sections.keys() & entry.keys()}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the guides, the files to which they lead, and the reference."""
    made = dict(reference())
    guides = [path for path in pages_of(config.nav) if path not in made]
    linked = {target for guide in guides for target in links_of(ROOT / guide)}
    for path in [*guides, *sorted(linked - {*guides})]:
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leave out badges, which the network draws, and indent by four, as Python-Markdown asks for nested lists."""
    page.meta["tags"] = WORDS.get(page.file.src_uri, [])
    if page.file.generated_by:
        return markdown
    markdown = re.sub(r"^\[!\[.*\n", "", markdown, flags=re.MULTILINE)
    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [re.sub(r"^ +", lambda spaces: 2 * spaces[0], text, flags=re.MULTILINE) for text in blocks[::2]]
    return "".join(blocks)


def on_page_content(html: str, **_: Any) -> str:
    """Make links of the roles that docstrings have, such as ``:class:`~fedattack.record.Record```."""
    linked = r'<autoref identifier="\1" optional><code>\2</code></autoref>'
    html = re.sub(r":\w+:<code>~?((?:[\w.]+\.)?(\w+))</code>", linked, html)
    return html.replace("::</p>", ":</p>")


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for readers of a screen, which the theme leaves out."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def pages_of(nav: Any) -> Iterator[str]:
    """Go through the paths in a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(entry)


def links_of(guide: Path) -> Iterator[str]:
    """Go through the files of the repository to which a guide links."""
    for link in re.findall(r"\]\(([^)#\s:]+)", guide.read_text(encoding="utf-8")):
        target = (guide.parent / link).resolve()
        if target.is_file():
            yield target.relative_to(ROOT).as_posix()


def reference() -> Iterator[tuple[str, str]]:
    """Make each page of the reference; yields its path and its text."""
    there = listing()
    yield "reference/README.md", lines("# Reference", REFERENCE)
    yield "reference/glossary.md", lines("# Glossary", "The words of reports.", defined(GLOSSARY.items()))
    yield "reference/settings.md", lines("# Settings", SETTINGS, defined(settings()))
    yield "reference/findings.md", lines("# Findings", FINDINGS, *findings())
    yield "reference/attacks.md", lines("# Attacks, presets, datasets", ATTACKS, *attacks(there))
    yield "reference/commands/README.md", lines("# Commands", COMMANDS, defined(summaries()))
    for name, command in commands().items():
        yield f"reference/commands/{name}.md", describe_command(name, command)
    for name, (title, what, module) in LIBRARY.items():
        yield f"reference/library/{name}.md", lines(f"# {title}", f"{what} Module `{module}`.", f"::: {module}")


REFERENCE = """
- [Glossary](glossary.md): the words of reports.
- [Commands](commands/README.md), with all their options.
- [Attacks, presets, datasets](attacks.md), as `fedattack list` shows them.
- [Findings](findings.md): each number that a report may show.
- [Settings](settings.md): what `--set` changes.
- [Library](library/brief.md): what Python code imports.
- [The record on disk](../fedattack/record/FORMAT.md), to read it without fedattack.
"""
SETTINGS = "`--set KEY=VALUE` changes a preset's setting; your own app has its own keys."
FINDINGS = "A star stands for what depends on the data, such as a client's name. Each question's guide says more."
ATTACKS = "This is what `fedattack list` shows. `--option KEY=VALUE` changes how an attack computes."
COMMANDS = "`fedattack COMMAND -h` shows the same in the terminal."
BOUNDS = {
    "minimum": "At least",
    "exclusiveMinimum": "More than",
    "maximum": "At most",
    "exclusiveMaximum": "Less than",
}


def commands() -> Mapping[str, click.Command]:
    """Return the commands by name."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)  # noqa: S101 typer makes one of several commands
    return {name: command for name, command in group.commands.items() if not command.hidden}


def summaries() -> Iterator[tuple[str, str]]:
    """Say each command in a sentence, with a link to its page."""
    for name, command in commands().items():
        yield f"[`{name}`]({name}.md)", (command.help or "").partition("\n\n")[0]


def describe_command(name: str, command: click.Command) -> str:
    """Write a command's page of its help: its use, examples to copy, and each option with its text."""
    context = click.Context(command, info_name=f"fedattack {name}")
    parts = [f"# fedattack {name}"]
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.startswith("Example"):
            parts.append(block(re.findall(r"`([^`]+)`", paragraph)))
        else:
            parts.append(paragraph)
    parts.insert(2, block([context.get_usage().removeprefix("Usage: ")], ""))
    arguments, options = [], []
    for parameter in command.get_params(context):
        name_and_text = parameter.get_help_record(context)
        if name_and_text:
            of_kind = arguments if isinstance(parameter, click.Argument) else options
            of_kind.append((f"`{name_and_text[0]}`", name_and_text[1]))
    parts += ["## Arguments", defined(arguments)] if arguments else []
    return lines(*parts, "## Options", defined(options))


def settings() -> Iterator[tuple[str, str]]:
    """Describe each setting: what it does, its default, and what it may be."""
    for setting in load_settings().values():
        if setting.internal:
            continue
        facts = [setting.help, f"Default: `{setting.default}`" if setting.default != "" else "Empty by default"]
        schema = setting.adapter.json_schema()
        facts += [f"{words} {schema[key]:,}" for key, words in BOUNDS.items() if key in schema]
        if setting.values:
            facts.append("One of: " + ", ".join(f"`{word}`" for word in setting.values))
        yield f"`{setting.name}`", ". ".join(facts) + "."


def findings() -> Iterator[str]:
    """List what each attack's judge may find, the headline first."""
    for threat in THREATS.values():
        yield f"## {threat.name.capitalize()}: {threat.question}"
        for attack, judge in threat.load_judges().items():
            measures = judge.measures.values()
            yield defined((f"`{attack}.{each.metric}`", each.label or summary_of(each.find)) for each in measures)


def attacks(there: Mapping[str, Any]) -> Iterator[str]:
    """Describe attacks with their options, presets, reproductions and datasets."""
    for name, attack in there["attacks"].items():
        needs = ", ".join(attack["needs"])
        yield lines(f"## Attack {name}", f"{attack['title']}. Paper: {attack['paper'] or 'none'}. Needs: {needs}.")
        yield defined((f"`--option {key}=…`", text) for key, text in attack["options"].items())
    yield lines("## Presets", defined((f"`{name}`", preset["help"]) for name, preset in there["presets"].items()))
    cells = there["reproductions"].items()
    yield lines(
        "## Reproductions", defined((f"`{name}`", f"{each['title']} ({each['paper']})") for name, each in cells)
    )
    yield lines("## Datasets", defined((f"`{name}`", source.description) for name, source in DATASETS.items()))


def defined(entries: Iterable[tuple[str, str]]) -> str:
    """Write a list of names, each with its text."""
    return "\n".join(f"{name}\n:   {' '.join(text.split())}\n" for name, text in entries)


def block(commands: Iterable[str], language: str = "bash") -> str:
    """Write commands as a block that can be copied."""
    return lines(f"```{language}", *commands, "```", between="\n")


def summary_of(function: Any) -> str:
    """Return the first sentence of a docstring."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def lines(*parts: str, between: str = "\n\n") -> str:
    """Put the parts of a page together."""
    return between.join(part.strip("\n") for part in parts)
