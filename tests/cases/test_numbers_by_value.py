"""A number is judged by its value, not by how it is written: 2.0 and 2e0 are 2 in JSON.

Sources: as of test_values_for_engines.py.
"""

import json

from programs import ask


def test_whole_numbers_in_every_spelling(programs):
    url, _ = programs.serve()
    answers = set()
    for number in ("2", "2.0", "2e0", "0.2e1"):
        body = f'{{"prompt": [{number}, 3, 4], "max_tokens": {number}, "temperature": 0}}'
        status, _, answer = ask(
            url + "/v1/completions", body.encode(), {"Content-Type": "application/json"}
        )
        assert status == 200, answer
        assert json.loads(answer)["usage"]["completion_tokens"] == 2
        answers.add(json.loads(answer)["choices"][0]["text"])
    assert len(answers) == 1


def test_a_fraction_is_no_count(programs):
    url, _ = programs.serve()
    for number in (2.5, 1e300, -1):
        status, _, answer = ask(url + "/v1/completions", {"prompt": "x", "max_tokens": number})
        assert status == 400
        assert json.loads(answer)["error"]["param"] == "max_tokens"
