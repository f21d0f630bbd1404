#!/usr/bin/env python3
"""Joins neighbouring documents of a suite to longer ones, for `cairn fidelity --texts DIR
--context-tokens N`.

    python3 benchmarks/fidelity/join_texts.py --each 5 --out build/fidelity/long

Documents of the published prose are about 2,000 tokens long, so five give contexts of 7,936 tokens.
"""

import argparse
import json
import pathlib

TEXTS = pathlib.Path(__file__).resolve().parent / "texts"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="published-prose")
    parser.add_argument("--each", type=int, required=True, help="documents of a joined one")
    parser.add_argument("--out", required=True, help="directory")
    arguments = parser.parse_args()
    documents = json.loads((TEXTS / f"{arguments.suite}.json").read_text(encoding="utf-8"))
    documents = documents["documents"]
    joined = []
    for first in range(0, len(documents) - arguments.each + 1, arguments.each):
        part = documents[first : first + arguments.each]
        joined.append(
            {
                "name": "+".join(document["name"] for document in part),
                "text": "\n\n".join(document["text"] for document in part),
            }
        )
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{arguments.suite}.json").write_text(
        json.dumps({"documents": joined}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
