"""What headers and fields say of a session; and that nonsense in them says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtop.capture.api.markers import marker
from kvtop.capture.conversations.sessions import Session, session_of
from kvtop.capture.turn import Captured


@pytest.mark.parametrize(
    ("headers", "hints", "expected"),
    [
        ([], {}, Session()),
        ([("X-Claude-Code-Session-Id", "s")], {}, Session(key="s")),
        ([], {"metadata.user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'}, Session(key="s")),
        ([], {"metadata.user_id": "user_ab_account__session_1e374c6c-7c3f"}, Session(key="1e374c6c-7c3f")),
        ([("x-session-affinity", "s"), ("x-parent-session-id", "p")], {}, Session(key="s", parent="p")),
        ([("thread-id", "t"), ("session-id", "s")], {"prompt_cache_key": "k"}, Session(key="t", cache_key="k")),
        ([("x-codex-window-id", "01a2:3")], {}, Session(window=3)),
        (
            [("x-codex-turn-metadata", '{"thread_source":"thread_title","parent_thread_id":"p"}')],
            {},
            Session(side=True, parent="p"),
        ),
        ([("x-claude-code-auxiliary-type", "quota")], {}, Session(side=True)),
        ([], {"previous_response_id": "resp_1", "user": "someone"}, Session(follows="resp_1")),
    ],
)
def test_what_is_said(headers: list[tuple[str, str]], hints: dict[str, str], expected: Session) -> None:
    assert session_of(Captured(request_headers=headers, hints=hints)) == expected


NAMES = st.sampled_from(["metadata.user_id", "x-codex-turn-metadata", "x-codex-window-id", "x-session-id"])


@given(
    st.dictionaries(
        NAMES, st.text() | st.sampled_from(["{", '{"a":', "[" * 99_999, '{"session_id":[1]}', ":" + "9" * 5000])
    )
)
def test_nonsense_says_nothing_and_harms_nothing(hints: dict[str, str]) -> None:
    found = session_of(Captured(hints=hints))
    assert isinstance(found.key, str) and isinstance(found.parent, str)


def test_marks_of_summaries_and_suggestions() -> None:
    assert marker("This session is being continued from a previous conversation that ran out of context.") == "summary"
    assert marker("<system-reminder>x</system-reminder>\n[SUGGESTION MODE: Suggest what comes next]") == "suggestion"
    assert marker("x" * 600 + "<state_snapshot>") == ""
    assert marker("Look at the files") == ""
