#!/usr/bin/env python3
"""Makes the texts that `cairn fidelity` measures on: texts/SPLIT-SUITE.json.

    python3 benchmarks/fidelity/build_texts.py --work DIR

Two splits that share no document: `tuning`, on which parameters may be chosen, and `published`, on
which results are published. The splits are drawn with seeds of their own. Sources, downloaded into
DIR with apt and pip: the CPython documentation (Debian package python3.11-doc) for prose and as the
hay of needles, the standard library (libpython3.11-stdlib) for code, chatterbot-corpus for
dialogue.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys

DOCUMENTS = 32
NEEDLE_CONTEXTS = 44
CHARACTERS = 9000  # More than 1,792 tokens of any of these texts.
SEEDS = {"tuning": 20261, "published": 77003}
CORPUS = "chatterbot-corpus==1.3.3"

FRUITS = ["apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum"]
CITIES = [
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Rome",
    "Vienna",
    "Tokyo",
    "Cairo",
    "Athens",
    "Dublin",
]
JOBS = [
    "doctor",
    "teacher",
    "farmer",
    "lawyer",
    "nurse",
    "pilot",
    "baker",
    "singer",
    "writer",
    "judge",
]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "purple", "orange", "pink"]
ANIMALS = ["dog", "cat", "horse", "rabbit", "parrot", "turtle", "snake", "goat", "duck", "sheep"]
NAMES = [
    "Alice",
    "Bruno",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Irene",
    "Jonas",
    "Karen",
    "Louis",
    "Maria",
    "Nina",
    "Oscar",
    "Paula",
    "Quentin",
    "Rosa",
    "Simon",
    "Teresa",
    "Ursula",
    "Victor",
    "Wendy",
    "Yannick",
]

# Kind: (fact, question, opening of the answer). {n} is a name, {v} the value, a word or number of
# its own.
FACTS = {
    "number": (
        "The secret number of {n} is {v}.",
        "What is the secret number of {n}?",
        "The secret number of {n} is",
    ),
    "code": (
        "The door code of {n} is {v}.",
        "What is the door code of {n}?",
        "The door code of {n} is",
    ),
    "year": (
        "{n} was born in the year {v}.",
        "In which year was {n} born?",
        "{n} was born in the year",
    ),
    "fruit": (
        "The favourite fruit of {n} is the {v}.",
        "What is the favourite fruit of {n}?",
        "The favourite fruit of {n} is the",
    ),
    "city": (
        "{n} lives in the city of {v}.",
        "In which city does {n} live?",
        "{n} lives in the city of",
    ),
    "job": ("{n} works as a {v}.", "What does {n} work as?", "{n} works as a"),
    "colour": ("The car of {n} is {v}.", "Which colour is the car of {n}?", "The car of {n} is"),
    "animal": ("{n} has a {v} as a pet.", "Which animal does {n} have as a pet?", "{n} has a"),
}


def value(kind, draw):
    words = {"fruit": FRUITS, "city": CITIES, "job": JOBS, "colour": COLOURS, "animal": ANIMALS}
    if kind in words:
        return draw.choice(words[kind])
    return str(
        {
            "number": draw.randint(100, 999),
            "code": draw.randint(10000, 99999),
            "year": draw.randint(1900, 2009),
        }[kind]
    )


def fetch(work):
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "root").exists():
        for package in ("python3.11-doc", "libpython3.11-stdlib"):
            subprocess.run(["apt-get", "download", package], cwd=work, check=True)
        for deb in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", deb, work / "root"], check=True)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
                CORPUS,
                "-d",
                work,
            ],
            check=True,
        )
        subprocess.run(
            ["tar", "xzf", next(work.glob("chatterbot*.tar.gz")), "-C", work / "root"], check=True
        )
    return work / "root"


def plain(text):
    """reStructuredText with the marks that are not language taken out."""
    text = re.sub(r"^\.\. .*(\n[ \t]+\S.*)*\n?", "", text, flags=re.M)
    text = re.sub(r":[\w:+-]+:`[~!]?([^`<]*?)(\s*<[^>]*>)?`", r"\1", text)
    text = re.sub(r"`{1,2}([^`]*)`{1,2}_?_?", r"\1", text)
    text = re.sub(r"^[=\-~^*#+\".]{3,}$\n?", "", text, flags=re.M)
    text = re.sub(r"\*{1,2}([^*\n]+)\*{1,2}", r"\1", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def long_enough(paths, clean):
    for path in paths:
        text = clean(path.read_text(encoding="utf-8", errors="ignore"))
        if len(text) >= CHARACTERS:
            yield path.stem.removesuffix(".rst"), text


def prose(root):
    return list(
        long_enough(sorted(root.glob("usr/share/doc/python3.11/html/_sources/**/*.rst.txt")), plain)
    )


def code(root):
    folder = root / "usr/lib/python3.11"
    return list(long_enough(sorted(p for p in folder.glob("**/*.py") if p.is_file()), str.strip))


def conversations(root):
    """Lists of lines. The corpus is YAML of one form; read by its indentation, so that no YAML
    library is needed."""
    found = []
    for path in sorted(root.glob("chatterbot*/chatterbot_corpus/data/english/*.yml")):
        body = path.read_text(encoding="utf-8").partition("conversations:")[2]
        for line in body.splitlines():
            text = line.strip()
            if line.startswith("- - "):
                found.append([text[4:]])
            elif line.startswith("  - ") and found:
                found[-1].append(text[2:])
            elif text and found:
                found[-1][-1] += " " + text
    return [[turn.strip("'\" ") for turn in c] for c in found if len(c) >= 2]


def excerpt(name, text, draw):
    start = draw.randint(0, max(0, len(text) - CHARACTERS))
    start = text.rfind("\n", 0, start) + 1
    return {"name": name, "text": text[start : start + CHARACTERS]}


def dialogues(all_turns, draw):
    documents = []
    for i in range(DOCUMENTS):
        text = ""
        for turns in draw.sample(all_turns, len(all_turns)):
            for speaker, turn in zip(("user", "assistant") * len(turns), turns):
                text += f"<|im_start|>{speaker}\n{turn}<|im_end|>\n"
            if len(text) >= CHARACTERS:
                break
        documents.append({"name": f"dialogue-{i}", "text": text})
    return documents


def needles(hay, draw):
    """Contexts with one fact of each kind, about different people, the first near the start and the
    last at the end."""
    contexts = []
    for name, text in hay[:NEEDLE_CONTEXTS]:
        kinds = draw.sample(list(FACTS), len(FACTS))
        people = draw.sample(NAMES, len(FACTS))
        facts = [(kind, person, value(kind, draw)) for kind, person in zip(kinds, people)]
        paragraphs = [p for p in text.split("\n\n") if 80 <= len(p) <= 900]
        draw.shuffle(paragraphs)
        contexts.append(
            {
                "name": name,
                "facts": [FACTS[kind][0].format(n=person, v=v) for kind, person, v in facts],
                "hay": paragraphs[:24],
                "cases": [
                    {
                        "kind": kind,
                        "question": FACTS[kind][1].format(n=person),
                        "opening": FACTS[kind][2].format(n=person),
                        "answer": " " + v,
                    }
                    for kind, person, v in facts
                ],
            }
        )
    return contexts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=pathlib.Path, required=True, help="for downloads")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "texts")
    arguments = parser.parse_args()
    root = fetch(arguments.work.resolve())

    pools = {"prose": prose(root), "code": code(root)}
    hay = [
        (name, text)
        for name, text in pools["prose"]
        if len([p for p in text.split("\n\n") if 80 <= len(p) <= 900]) >= 24
    ]
    random.Random(1).shuffle(hay)
    pools["needles"] = hay[: 2 * NEEDLE_CONTEXTS]
    used = {name for name, _ in pools["needles"]}
    pools["prose"] = [(name, text) for name, text in pools["prose"] if name not in used]
    turns = conversations(root)
    random.Random(2).shuffle(turns)
    for i, (split, seed) in enumerate(SEEDS.items()):
        suites = {}
        for suite in ("prose", "code"):
            pool = list(pools[suite])
            random.Random(3).shuffle(pool)
            half = pool[i * len(pool) // 2 : (i + 1) * len(pool) // 2]
            draw = random.Random(f"{seed}-{suite}")
            suites[suite] = {
                "documents": [
                    excerpt(name, text, draw) for name, text in draw.sample(half, DOCUMENTS)
                ]
            }
        draw = random.Random(f"{seed}-dialogue")
        suites["dialogue"] = {
            "documents": dialogues(turns[i * len(turns) // 2 : (i + 1) * len(turns) // 2], draw)
        }
        draw = random.Random(f"{seed}-needles")
        suites["needles"] = {
            "contexts": needles(
                pools["needles"][i * NEEDLE_CONTEXTS : (i + 1) * NEEDLE_CONTEXTS], draw
            )
        }
        for suite, content in suites.items():
            path = arguments.out / f"{split}-{suite}.json"
            path.write_text(
                json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
            )
            print(
                f"{path.name}: {len(next(iter(content.values())))} documents, "
                f"{path.stat().st_size} bytes"
            )


if __name__ == "__main__":
    main()
