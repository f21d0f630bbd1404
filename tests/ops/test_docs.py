"""Documents: links lead somewhere, every folder is described, every page is listed."""

import re
import subprocess

import pytest

from conftest import ROOT
from test_layering import ORDERS

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
# Folders of the repository's own machinery.
UNDESCRIBED = {".", ".ci"}


def tracked():
    """Files of the repository, also those not yet committed; without git, what lies in the folder
    and was not built."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]
    return [
        p
        for p in ROOT.rglob("*")
        if p.is_file() and not {"build", ".git", ".cache", ".venv"} & set(p.relative_to(ROOT).parts)
    ]


FILES = tracked()
PAGES = [p for p in FILES if p.suffix == ".md"]


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def anchors(page):
    """GitHub's names for the headings of a page."""
    headings = re.findall(
        r"^#+\s+(.*?)\s*$",
        re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S),
        flags=re.M,
    )
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    for pair in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        target = pair[0] or pair[1]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"{target} does not exist"
        assert aim == ROOT or ROOT in aim.parents, f"{target} leaves the repository"
        if anchor and aim.suffix == ".md":
            assert anchor in anchors(aim), f"{target}: no such heading"


def test_every_page_of_docs_is_in_its_index():
    """Pages of a wing in docs/README.md, or in the README of the folder in which they lie."""
    for page in PAGES:
        if ROOT / "docs" in page.parents and page.name != "README.md":
            index = next(p / "README.md" for p in page.parents if (p / "README.md").exists())
            link = page.relative_to(index.parent).as_posix()
            assert f"({link}" in index.read_text(encoding="utf-8"), f"{index}: no link to {link}"


def test_every_folder_is_described():
    """By a README of its own, or in the next one above. Folders of unit tests mirror the sources
    instead."""
    missing = []
    for folder in sorted({p.parent for p in FILES}):
        name = folder.relative_to(ROOT).as_posix()
        if name in UNDESCRIBED or (folder / "README.md").exists():
            continue
        if name.startswith("tests/unit/"):
            mirrored = name.removeprefix("tests/unit/")
            places = [
                ROOT / mirrored,
                ROOT / "services" / mirrored,
                ROOT / mirrored.replace("tools/", "tools/cairn/", 1),
                ROOT / mirrored.replace("clients/cpp/", "clients/cpp/src/", 1),
            ]
            if not any(place.is_dir() for place in places):
                missing.append(f"{name} mirrors nothing")
            continue
        above = next(p for p in folder.parents if (p / "README.md").exists() or p == ROOT)
        words = folder.relative_to(above).as_posix() + "/"
        if above == ROOT or f"`{words}" not in (above / "README.md").read_text(encoding="utf-8"):
            missing.append(
                f"{name}: neither a README nor a line with `{words}` in "
                f"{above.relative_to(ROOT)}/README.md"
            )
    assert not missing, "\n".join(missing)


def test_each_folder_of_a_service_is_named_where_newcomers_look():
    """In the README of the service, and in the architecture."""
    architecture = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    missing = []
    for parent, folders in ORDERS.items():
        if not parent.startswith("services/"):
            continue
        service = "/".join(parent.split("/")[:2])
        readme = (ROOT / service / "README.md").read_text(encoding="utf-8")
        wing = parent.removeprefix(service).strip("/")
        for folder in folders:
            if f"`{folder}/`" not in architecture:
                missing.append(f"docs/architecture.md: {parent}/{folder}")
            if f"`{wing}/{folder}/`".replace("`/", "`") not in readme:
                missing.append(f"{service}/README.md: {parent}/{folder}")
    assert not missing, "\n".join(missing)


def test_no_file_is_empty():
    assert not [p for p in FILES if p.stat().st_size == 0]


def code(text):
    """The lines of a piece of code, without indentation and empty lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def stands_in(lines, others):
    return any(others[n : n + len(lines)] == lines for n in range(len(others)))


EXAMPLES = [p for p in FILES if p.parent == ROOT / "examples/cpp" and p.suffix == ".cc"]
CONSUMER = ROOT / "tests/package/consumer/CMakeLists.txt"


def test_code_on_the_page_of_cpp_stands_in_programs_that_are_built():
    sources = [code(p.read_text(encoding="utf-8")) for p in [*EXAMPLES, CONSUMER]]
    page = (ROOT / "docs/program/cpp.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:cpp|cmake)\n(.*?)```", page, flags=re.S)
    assert len(blocks) > 10
    unknown = [b for b in blocks if not any(stands_in(code(b), source) for source in sources)]
    assert not unknown, "\n".join(unknown)


def test_code_at_the_top_of_the_client_stands_in_the_example():
    header = ROOT / "clients/cpp/include/cairn/client/cache_client.h"
    quoted = re.findall(r"^//   (.*)$", header.read_text(encoding="utf-8"), flags=re.M)
    example = code((ROOT / "examples/cpp/get_and_push.cc").read_text(encoding="utf-8"))
    assert len(quoted) > 4
    assert not [line for line in quoted if line.strip() not in example]


TEST = re.compile(r"`((?:tests/[\w/]+)\.py)::(\w+)`")
NAMED_TESTS = [
    (page, path, name)
    for page in PAGES
    for path, name in TEST.findall(page.read_text(encoding="utf-8"))
]


def test_tests_that_pages_name_exist():
    assert NAMED_TESTS
    for page, path, name in NAMED_TESTS:
        where = f"{page.relative_to(ROOT)}: {path}::{name}"
        assert (ROOT / path).is_file(), where
        assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), (
            where
        )


def test_each_family_of_models_has_tests_behind_it():
    text = (ROOT / "docs/program/models.md").read_text(encoding="utf-8")
    section = text.split("## Families of models\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!family|-)(.*) \|$", section, re.M)
    rows = [row for row in rows if not row.startswith("---")]
    assert len(rows) >= 12
    for row in rows:
        assert TEST.search(row), row
