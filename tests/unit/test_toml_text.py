"""Where in a text a value stands."""

from __future__ import annotations

import pytest

from kvtop.toml_text import line_of

TEXT = """\
about = "x"  # 1
serve.port = 8000
[serve.json.kv-transfer-config]
kv_role = "kv_both"
"a.b" = 1
[[sidecar]]
name = "one"
[[sidecar]]
name = "two"
[env]
set = {X = "1"}
[env.from_file]
'Y' = "/k"
"""


@pytest.mark.parametrize(
    ("path", "nth", "line"),
    [
        (("about",), 0, 1),
        (("serve", "port"), 0, 2),
        (("serve", "json", "kv-transfer-config", "kv_role"), 0, 4),
        (("serve", "json", "kv-transfer-config", "a.b"), 0, 5),
        (("serve", "json", "kv-transfer-config", "deeper"), 0, 3),
        (("sidecar", "name"), 1, 9),
        (("sidecar",), 1, 8),
        (("sidecar", "command"), 0, 6),
        (("env", "set", "X"), 0, 11),
        (("env", "from_file", "Y"), 0, 13),
        (("log", "file"), 0, None),
    ],
)
def test_a_value_is_found_by_the_longest_part_of_its_path(path: tuple[str, ...], nth: int, line: int | None) -> None:
    assert line_of(TEXT, path, nth) == line
