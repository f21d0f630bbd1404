#!/usr/bin/env python3
"""Makes the tasks that `cairn fidelity` asks about made-up contexts: texts/SPLIT-SUITE.json.

    python3 benchmarks/fidelity/build_tasks.py [--suite keys ...] [--keys N] [--pairs N]
        [--others N] [--values numbers] [--tokens 1024] [--contexts 12] [--out DIR]

Four suites, after the kinds of RULER (Hsieh et al., 2024) and GSM8K (Cobbe et al., 2021).
Everything is drawn from the split's seed, and nothing is downloaded: the text around facts is made
of sentences that say nothing about them.

- keys: `--keys` facts of one form, a question about each of them; and about two of them at once.
- tracking: a value is given to one name, and another name is said to have the same value;
  `--pairs` of them.
- aggregation: a list of words, one of which comes more often than `--others` other ones.
- sums: worked examples of one form, and a question whose answer has that form.
- needles (only if asked for, and into another folder): the contexts of texts/SPLIT-needles.json
  with the text of the contexts behind them as well, for `--tokens` of more than 1,024.

Facts tell cities and lists have colours; with `--values numbers` they are numbers and words, which
have more tokens.

A file has as many contexts of `--tokens` tokens or more; `cairn fidelity --question-tokens` cuts
them. Answers that full KV does not give are counted by nobody, so a suite says how many there are:
the numbers of facts say how hard it is. The defaults are the easiest ones.
"""

import argparse
import json
import pathlib
import random

from build_texts import CITIES, COLOURS

TEXTS = pathlib.Path(__file__).parent / "texts"
CHARACTERS_PER_TOKEN = 6  # More than any of these texts has.
SEEDS = {"tuning": 41, "published": 90210}

WORDS = (
    "amber anchor apple arrow autumn badge basket beacon bottle bridge butter candle "
    "canyon carpet castle cedar cherry circle cobalt comet copper coral cotton crystal "
    "dancer desert dolphin dragon eagle ember falcon feather flower forest garden ginger "
    "glacier granite harbor hazel helmet island ivory jacket jasmine jungle kettle ladder"
    " lantern lemon lily magnet maple marble meadow mirror needle nickel ocean olive "
    "orchid oxygen palace paper pepper piano planet pocket pollen prairie puzzle quartz "
    "rabbit raven ribbon river rocket saddle salmon shadow silver spider spring summer "
    "sunset temple thunder ticket timber tulip tunnel turtle valley velvet violet walnut "
    "window winter yellow zebra"
).split()
NAMES = (
    "Alice Bruno Clara David Emma Felix Grace Henry Irene Jonas Karen Louis Maria Nina "
    "Oscar Paula Rosa Simon Teresa Victor Wendy"
).split()
THINGS = (
    "apples books coins cups dolls eggs flowers hats keys pens plates stamps stones toys".split()
)
SUBJECTS = (
    "The old bus,The baker,A tall man,The wind,The library,A small boat,The teacher,The "
    "night train,A grey cat,The market,The long road,The choir,A young doctor,The "
    "river,The school,The postman"
).split(",")
VERBS = (
    "came late,was quiet,stood near the church,waited for the rain,turned to the left,was"
    " full of people,closed at noon,went past the hill,looked like new,slept through the "
    "day,had no name,was painted again,made little noise,stopped at the gate"
).split(",")
TAILS = (
    "that week,in the morning,as always,without a reason,after the storm,before the "
    "holidays,on the other side of town,for a long time,once more,and nobody minded"
).split(",")


def hay(draw, characters):
    """Paragraphs that say nothing about any fact."""
    paragraphs, length = [], 0
    while length < characters:
        sentences = [
            f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(TAILS)}."
            for _ in range(draw.randint(3, 6))
        ]
        paragraphs.append(" ".join(sentences))
        length += len(paragraphs[-1])
    return paragraphs


def context(name, facts, around, cases):
    return {"name": name, "facts": facts, "hay": around, "cases": cases}


def case(kind, question, opening, answer):
    return {"kind": kind, "question": question, "opening": opening, "answer": answer}


class Number:
    """A fact, a question and the opening of its answer, about the number that somebody has."""

    fact = "The number of the {n} is {v}."
    same = "The number of the {n} is that of the {m}."
    question = "What is the number of the {n}?"
    both = "What are the numbers of the {n} and the {m}?"
    opening = "The number of the {n} is"
    names = WORDS

    @staticmethod
    def values(draw, count):
        return [str(n) for n in draw.sample(range(100, 1000), count)]


class City:
    """The same about a city: one token, where a number has three."""

    fact = "{n} lives in the city of {v}."
    same = "{n} lives in the same city as {m}."
    question = "In which city does {n} live?"
    both = "In which cities do {n} and {m} live?"
    opening = "{n} lives in the city of"
    names = NAMES

    @staticmethod
    def values(draw, count):
        return draw.sample(CITIES, count)


VALUES = {"numbers": Number, "cities": City}


def keys(name, draw, characters, level):
    form = VALUES[level.values]
    names = draw.sample(form.names, level.keys)
    of = dict(zip(names, form.values(draw, level.keys)))
    facts = [form.fact.format(n=n, v=v) for n, v in of.items()]
    cases = [
        case("one", form.question.format(n=n), form.opening.format(n=n), f" {of[n]}") for n in names
    ]
    for _ in range(2):
        a, b = draw.sample(names, 2)
        cases.append(
            case(
                "two",
                form.both.format(n=a, m=b),
                f"{form.fact.format(n=a, v=of[a])} {form.opening.format(n=b)}",
                f" {of[b]}",
            )
        )
    return context(name, facts, hay(draw, characters), cases)


def tracking(name, draw, characters, level):
    form = VALUES[level.values]
    names = draw.sample(form.names, 2 * level.pairs)
    facts, cases = [], []
    for first, second, value in zip(names[::2], names[1::2], form.values(draw, level.pairs)):
        same = form.same.format(n=second, m=first)
        facts += [form.fact.format(n=first, v=value), same]
        of_first, of_second = form.opening.format(n=first), form.opening.format(n=second)
        ask_second = form.question.format(n=second)
        cases += [
            case("told", form.question.format(n=first), of_first, f" {value}"),
            case("followed", ask_second, of_second, f" {value}"),
            case("chained", ask_second, f"{same} {of_first}", f" {value}"),
        ]
    draw.shuffle(facts)
    return context(name, facts, hay(draw, characters), cases)


def aggregation(name, draw, characters, level):
    words = draw.sample(WORDS if level.values == "numbers" else COLOURS, 1 + level.others)
    often, others = words[0], words[1:]
    drawn, length = [], 0
    while length < characters:
        row = [often] * 8 + others
        draw.shuffle(row)
        drawn.append(", ".join(row) + ",")
        length += len(drawn[-1])
    facts = [
        "Here is a list of words. One of them comes more often than the others.",
        "The list ends here.",
    ]
    cases = [
        case(
            "most",
            "Which word comes most often in the list?",
            "The word that comes most often is",
            f" {often}",
        ),
        case(
            "most",
            "Which word is the most common?",
            "The most common word in the list is",
            f" {often}",
        ),
    ]
    return context(name, facts, drawn, cases)


def sum_of(draw):
    who, thing = draw.choice(NAMES), draw.choice(THINGS)
    a, b = draw.randint(2, 9), draw.randint(2, 9)
    question = f"{who} has {a} {thing} and gets {b} more. How many {thing} does {who} have now?"
    return question, f" {a} + {b} = {a + b}. The answer is {a + b}"


def sums(name, draw, characters, level):
    del level  # One is enough.
    shots, length = [], 0
    while length < characters:
        question, answer = sum_of(draw)
        shots.append(f"Question: {question}\nAnswer:{answer}.")
        length += len(shots[-1])
    cases = []
    for _ in range(8):
        question, answer = sum_of(draw)
        cases.append(case("sum", f"Question: {question}", "Answer:", answer))
    return context(name, shots[:2], shots[2:], cases)


SUITES = {"keys": keys, "tracking": tracking, "aggregation": aggregation, "sums": sums}


def drawn(split, suite, arguments):
    draw = random.Random(f"{SEEDS[split]}-{suite}-{arguments.tokens}")
    characters = CHARACTERS_PER_TOKEN * arguments.tokens
    return [
        SUITES[suite](f"{suite}-{i}", draw, characters, arguments)
        for i in range(arguments.contexts)
    ]


def longer_needles(split, arguments):
    """The first contexts of the split, each with the hay of those behind it until it is long
    enough. Their facts stay where they are."""
    file = json.loads((TEXTS / f"{split}-needles.json").read_text(encoding="utf-8"))
    contexts, longer = file["contexts"], []
    for i in range(min(arguments.contexts, len(contexts))):
        around = []
        for other in contexts[i:] + contexts[:i]:
            if sum(map(len, around)) >= CHARACTERS_PER_TOKEN * arguments.tokens:
                break
            around += other["hay"]
        longer.append(contexts[i] | {"hay": around})
    return longer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--suite", action="append", choices=[*SUITES, "needles"], help="all but needles if missing"
    )
    parser.add_argument("--keys", type=int, default=2, help="facts of a context of keys")
    parser.add_argument("--pairs", type=int, default=1, help="values of a context of tracking")
    parser.add_argument("--others", type=int, default=1, help="other words of aggregation")
    parser.add_argument("--values", choices=VALUES, default="cities", help="what facts tell")
    parser.add_argument(
        "--tokens", type=int, default=1024, help="least tokens of a context (%(default)s)"
    )
    parser.add_argument(
        "--contexts", type=int, default=12, help="how many contexts a file has (%(default)s)"
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=TEXTS,
        help="folder of the files; the one in the repository if missing",
    )
    arguments = parser.parse_args()
    suites = arguments.suite or list(SUITES)
    for name, least, most in (("keys", 2, 10), ("pairs", 1, 10), ("others", 1, 9)):
        if not least <= getattr(arguments, name) <= most:
            raise SystemExit(
                f"--{name}: got {getattr(arguments, name)}, expected {least} to {most}"
            )
    if "needles" in suites and arguments.out.resolve() == TEXTS.resolve():
        raise SystemExit(
            f"--out: got '{arguments.out}', expected another folder for longer needles"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in SEEDS:
        for suite in suites:
            if suite == "needles":
                contexts = longer_needles(split, arguments)
            else:
                contexts = drawn(split, suite, arguments)
            (arguments.out / f"{split}-{suite}.json").write_text(
                json.dumps({"contexts": contexts}, ensure_ascii=False, indent=0) + "\n",
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
