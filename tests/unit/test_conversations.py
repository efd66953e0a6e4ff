"""Which turn follows which: traffic in the shape of what real agents were seen to send."""

from __future__ import annotations

import time

import pytest
from capture_talks import Recorder, Where

from kvtop.capture.conversations.linker import LIMIT, MAX_AGE_S, Linker
from kvtop.capture.turn import Captured, Route, TurnState

TITLE = ("you write titles",)
CLAUDE = "x-claude-code-session-id"


def steps(first: list[str], words: list[str]) -> list[list[str]]:
    """The prompts of a tool loop: each with the reply and the tool's result of the one before."""
    prompts = [first]
    for word in words:
        prompts.append([*prompts[-1], f"a call {word}", f"t result {word}"])
    return prompts


def test_a_tool_loop_is_one_conversation() -> None:
    box = Recorder()
    one, two, three = steps(["u look"], ["x", "y"])
    assert box.turn("1", one) == Where("1", None, "first")
    assert box.turn("2", two) == Where("1", "1", "next")
    assert box.turn("3", three) == Where("1", "2", "next")


def test_a_changed_system_prompt_and_changed_tools_do_not_split_it() -> None:
    box = Recorder()
    for i, prompt in enumerate(steps(["u look"], ["x", "y", "z"])):
        tools = [f"read {i}", f"bash {i}"][:: 1 - 2 * (i % 2)]
        where = box.turn(f"{i}", prompt, system=[f"now it is 12:00:0{i}"], tools=tools)
        assert where == Where("0", f"{i - 1}" if i else None, "next" if i else "first")


def test_the_same_system_prompt_with_another_first_message_is_another_conversation() -> None:
    box = Recorder()
    for name, prompt in (("a1", "u one"), ("b1", "u two"), ("a2", "u one"), ("b2", "u two")):
        more = [f"a {name[0]}", f"t {name[0]}"] if name[1] == "2" else []
        where = box.turn(name, [prompt, *more])
        assert where == Where(f"{name[0]}1", f"{name[0]}1" if more else None, "next" if more else "first")


def test_two_tasks_that_take_the_same_steps_at_once_stay_apart() -> None:
    """A cold model says the same to both, and a client that counts its calls gives them the same ids."""
    box = Recorder()
    prompts = [steps([f"u task {name}"], ["x", "y", "z"]) for name in "ab"]
    for i in range(4):
        for name, prompt in zip("ab", prompts, strict=True):
            place = Where(f"{name}0", f"{name}{i - 1}" if i else None, "next" if i else "first")
            assert box.turn(f"{name}{i}", prompt[i]) == place


def test_a_retry_after_an_error_an_abort_or_the_same_messages_again() -> None:
    box = Recorder()
    box.ask("1", ["u look"])
    box.end("1", state=TurnState.FAILED)
    box.ask("again", ["u look"])
    box.end("again", state=TurnState.ABORTED)
    assert box.turn("third", ["u look"]) == Where("1", "again", "retry")
    assert box.turn("2", ["u look", "a x", "t x"]) == Where("1", "third", "next")
    assert box.turn("2b", ["u look", "a x", "t x"]) == Where("1", "2", "retry")
    assert box.turn("3", ["u look", "a x", "t x", "a y", "t y"]) == Where("1", "2b", "next")


@pytest.mark.parametrize(
    ("system", "tools", "messages", "relation", "changed"),
    [
        (["you"], ["read", "bash"], ["u look"], "retry", []),
        (["you, at 12:01"], ["read", "bash"], ["u look"], "branch", ["system"]),
        (["you"], ["read", "bash", "grep"], ["u look"], "branch", ["tools"]),
        (["you"], ["bash", "read"], ["u look"], "branch", ["tools"]),
        ([], [], ["u look"], "branch", ["system", "tools"]),
        (["you"], ["read", "bash"], ["u look", "s be brief"], "branch", ["system_messages"]),
        (["you"], ["read", "bash"], ["s be brief", "u look"], "branch", ["system"]),
        (["you"], ["read", "bash"], ["u look", "a x", "t x"], "next", []),
        (["you"], ["read", "bash"], ["u look", "a x", "t x", "s be brief"], "next", []),
        (["you, at 12:01"], ["read"], ["u look", "a x", "t x"], "next", ["system", "tools"]),
    ],
)
def test_the_same_messages_with_another_system_prompt_or_other_tools_are_no_retry(
    system: list[str], tools: list[str], messages: list[str], relation: str, changed: list[str]
) -> None:
    box = Recorder()
    box.turn("1", ["u look"], system=["you"], tools=["read", "bash"])
    assert box.turn("2", messages, system=system, tools=tools) == Where("1", "1", relation)
    assert box.turns["2"].changed == changed


def test_the_same_first_message_while_the_first_still_runs_is_a_second_run() -> None:
    box = Recorder()
    box.ask("a1", ["u look"])
    assert box.ask("b1", ["u look"]) == Where("b1", None, "first")
    box.end("a1")
    assert box.ask("a2", ["u look", "a A", "t A"]) == Where("a1", "a1", "next")
    box.end("b1")
    assert box.ask("b2", ["u look", "a B", "t B"]) == Where("b1", "b1", "next")
    box.end("b2")
    box.end("a2")
    assert box.ask("b3", ["u look", "a B", "t B", "a B2", "t B2"]) == Where("b1", "b2", "next")
    assert box.ask("a3", ["u look", "a A", "t A", "a A2", "t A2"]) == Where("a1", "a2", "next")


def test_the_same_first_message_once_the_first_went_on_is_a_second_run() -> None:
    """The same task again in the same workspace, no session hint: claude, pi, qwen, cline and gptme all do that."""
    box = Recorder()
    for name, prompt in zip("123", steps(["u look"], ["x", "y"]), strict=True):
        box.turn(name, prompt)
    again = steps(["u look"], ["x'", "y'"])
    assert box.turn("n1", again[0]) == Where("n1", None, "first")
    assert box.turn("n2", again[1]) == Where("n1", "n1", "next")
    assert box.turn("n3", again[2]) == Where("n1", "n2", "next")


def test_a_second_run_whose_model_says_the_same_stays_apart() -> None:
    box = Recorder()
    prompts = steps(["u look"], ["x", "y"])
    for name, prompt in zip("123", prompts, strict=True):
        box.turn(name, prompt)
    assert box.turn("n1", prompts[0]) == Where("n1", None, "first")
    assert box.turn("n2", prompts[1]) == Where("n1", "n1", "next")
    assert box.turn("n3", prompts[2]) == Where("n1", "n2", "next")


def test_session_keys_tell_equal_runs_apart_at_every_step() -> None:
    box = Recorder()
    for i, prompt in enumerate(steps(["u look"], ["x", "y", "z"])):
        for key in "ab":
            where = box.turn(f"{key}{i}", prompt, headers=[("x-session-id", f"ses-{key}")], agent="opencode")
            assert where == Where(f"{key}0", f"{key}{i - 1}" if i else None, "next" if i else "first")


def test_equal_prompts_of_other_programs_are_other_conversations() -> None:
    box = Recorder()
    for i, prompt in enumerate(steps(["u look"], ["x"])):
        for agent in ("pi", "AI SDK", "OpenAI Python"):
            words = [word.replace("x", agent) for word in prompt]
            where = box.turn(f"{agent}{i}", words, agent=agent)
            assert where.conversation == f"{agent}0"


def test_rolled_back_and_asked_anew_is_a_branch() -> None:
    box = Recorder()
    box.turn("1", ["u one"], calls=False)
    box.turn("2", ["u one", "a 1", "u two"], calls=False)
    box.turn("3", ["u one", "a 1", "u two", "a 2", "u three"], calls=False)
    assert box.turn("4", ["u one", "a 1", "u TWO"]) == Where("1", "2", "branch")
    assert box.turn("5", ["u one", "a 1", "u TWO", "a 4", "t 4"]) == Where("1", "4", "next")
    assert box.turn("6", ["u one", "a 1", "u two", "a 2", "u THREE"]) == Where("1", "3", "branch")


def test_history_edited_on_the_way_goes_on() -> None:
    """An old tool output cleared, and a message put in: not append-only, and no branch."""
    box = Recorder()
    one, two, three = steps(["u look"], ["x", "y"])
    box.turn("1", one)
    box.turn("2", two)
    box.turn("3", three)
    cleared = ["u look", "a call x", "t cleared", "a call y", "t result y", "a call z", "t result z"]
    assert box.turn("4", cleared) == Where("1", "3", "next")
    put_in = [*cleared[:3], "u reminder", *cleared[3:], "a call w", "t result w"]
    assert box.turn("5", put_in) == Where("1", "4", "next")


def test_a_long_first_message_goes_on_whatever_is_put_in_before_it() -> None:
    box = Recorder()
    box.turn("1", ["u 9000:look"])
    assert box.turn("2", ["u note", "u 9000:look", "a x", "u more"]) == Where("1", "1", "next")
    box = Recorder()
    old = ["u 400:one", "a ok", "u 400:two", "a ok", "u 400:three"]
    box.turn("1", old)
    assert box.turn("2", ["u 400:edited one", *old[1:], "a ok", "u four"]) == Where("1", "1", "next")


def test_a_short_message_or_one_that_was_not_answered_goes_on_with_nothing() -> None:
    for said, rest in (("u look", ["a x", "u more"]), ("u 9000:look", [])):
        box = Recorder()
        box.turn("1", [said])
        assert box.turn("2", ["u note", said, *rest]) == Where("2", None, "first")


def test_small_talk_ties_no_turn_to_another_program() -> None:
    box = Recorder()
    box.turn("1", ["u 9000:one task", "a ok", "u and then?"])
    other = ["u 9000:quite another", "a ok", "u and then?"]
    assert box.turn("2", other, agent="other") == Where("2", None, "first")


def test_a_reminder_that_moves_with_the_newest_message_splits_nothing() -> None:
    box = Recorder()
    hints = {"x-session-id": "s1"}
    box.turn("1", ["u 9000:look and env"], hints=hints)
    assert box.turn("2", ["u look", "a x", "t x and env"], hints=hints) == Where("1", "1", "next")
    assert box.turn("3", ["u look", "a x", "t x", "a y", "t y and env"], hints=hints) == Where("1", "2", "next")
    assert box.turn("4", ["u look", "a x", "t x", "a y", "t y", "a z", "t z env"], hints=hints).parent == "3"


def test_a_long_reminder_that_leaves_the_first_message_splits_nothing_without_a_session() -> None:
    box = Recorder()
    box.turn("1", ["u 900:look#env"])
    assert box.turn("2", ["u 500:look", "a x", "t x and env"]) == Where("1", "1", "next")
    other = Recorder()
    other.turn("1", ["u 900:look#env"])
    assert other.turn("2", ["u 500:write#env", "a x", "t x"]).relation == "first"


def test_qwen_the_date_reminder_leaves_the_first_message_on_continue() -> None:
    box = Recorder()
    prompts = steps(["u date and look"], ["x", "y"])
    for name, prompt in zip("123", prompts, strict=True):
        box.turn(name, prompt, agent="qwen-code")
    later = ["u look", *prompts[2][1:], "a done", "u and now?"]
    assert box.turn("4", later, agent="qwen-code") == Where("1", "3", "next")
    assert box.turn("5", [*later, "a z", "t z"], agent="qwen-code") == Where("1", "4", "next")


def test_qwen_a_suggestion_is_a_side_call_and_the_talk_goes_on_past_it() -> None:
    box = Recorder()
    box.turn("1", ["u look"], calls=False, agent="qwen-code")
    side = box.turn("s", ["u look", "a done", "u suggestion=next?"], calls=False, agent="qwen-code")
    assert side == Where("s", "1", "side")
    assert box.turn("2", ["u look", "a done", "u more"], agent="qwen-code") == Where("1", "1", "next")
    side = box.turn("s2", ["u look", "a done", "u more", "a m", "u suggestion=next?"], agent="qwen-code")
    assert side == Where("s2", "2", "side")


def test_opencode_the_title_comes_first_and_is_no_part_of_the_talk() -> None:
    box = Recorder()
    for key in "ab":  # the same prompt twice, in two sessions
        hints = {"x-session-affinity": f"ses-{key}", "x-session-id": f"ses-{key}"}
        title = ["u make a title", "u look"]
        where = box.ask(f"t{key}", title, agent="opencode", tools=(), system=TITLE, hints=hints)
        assert where == Where(f"t{key}", None, "side")
        for i, prompt in enumerate(steps(["u look"], ["x", "y"])):
            where = box.turn(f"{key}{i}", prompt, agent="opencode", hints=hints)
            assert where == Where(f"{key}0", f"{key}{i - 1}" if i else None, "next" if i else "first")
        box.end(f"t{key}", calls=False)


def test_opencode_a_subagent_has_a_session_of_its_own_and_names_its_parent() -> None:
    box = Recorder()
    box.turn("1", ["u look"], agent="opencode", hints={"x-session-id": "main"})
    child = {"x-session-id": "child", "x-parent-session-id": "main"}
    assert box.turn("s1", ["u count"], agent="opencode", hints=child) == Where("s1", "1", "subagent")
    assert box.turn("s2", ["u count", "a n", "t n"], agent="opencode", hints=child) == Where("s1", "s1", "next")
    where = box.turn("2", ["u look", "a task", "t counted"], agent="opencode", hints={"x-session-id": "main"})
    assert where == Where("1", "1", "next")


def test_claude_subagents_in_the_background_and_a_system_message_in_the_middle() -> None:
    box = Recorder()
    main = [(CLAUDE, "s1")]
    kind = {"agent": "Claude Code", "route": Route.MESSAGES}
    box.turn("1", ["u look", "s env"], headers=main, **kind)
    box.turn("2", ["u look", "s env", "a task", "u started"], headers=main, **kind)
    agents = {name: [*main, ("x-claude-code-agent-id", name)] for name in ("p", "q")}
    for name, headers in agents.items():
        where = box.ask(f"{name}1", [f"u count {name}", "s env"], headers=headers, tools=("read",), **kind)
        assert where == Where(f"{name}1", "2", "subagent")
    where = box.ask("3", ["u look", "s env", "a task", "u started", "a ls", "u files"], headers=main, **kind)
    assert where == Where("1", "2", "next")
    for name, headers in agents.items():
        box.end(f"{name}1")
        prompt = [f"u count {name}", "s env", f"a {name}", f"u {name}", "s agents there are"]
        where = box.ask(f"{name}2", prompt, headers=headers, tools=("read",), **kind)
        assert where == Where(f"{name}1", f"{name}1", "next")
    nested = [*main, ("x-claude-code-agent-id", "r"), ("x-claude-code-parent-agent-id", "q")]
    assert box.ask("r1", ["u deeper"], headers=nested, **kind) == Where("r1", "q2", "subagent")
    fork = ["u look", "s env", "a task", "u started", "a fork", "u you are a fork"]
    forked = [*main, ("x-claude-code-agent-id", "f")]
    box.end("3")
    assert box.ask("f1", fork, headers=forked, **kind) == Where("f1", "2", "subagent")


def test_claude_a_title_for_each_prompt() -> None:
    box = Recorder()
    headers = [(CLAUDE, "s1")]
    kind = {"agent": "Claude Code", "route": Route.MESSAGES, "headers": headers}
    assert box.ask("t1", ["u quoted look"], tools=(), system=TITLE, **kind) == Where("t1", None, "side")
    assert box.turn("1", ["u look"], calls=False, **kind) == Where("1", None, "first")
    assert box.ask("t2", ["u quoted more"], tools=(), system=TITLE, **kind) == Where("t2", "1", "side")
    assert box.turn("2", ["u look", "a done", "u more"], **kind) == Where("1", "1", "next")


def test_codex_a_thread_title_has_its_own_cache_key_and_says_what_it_is() -> None:
    box = Recorder()
    kind = {"agent": "Codex", "route": Route.RESPONSES, "system": ()}
    main = [("session-id", "m"), ("thread-id", "m"), ("x-codex-window-id", "m:0")]
    box.ask("1", ["d rules", "d more", "u env", "u look"], headers=main, hints={"prompt_cache_key": "m"}, **kind)
    about = '{"thread_id":"t","request_kind":"turn","thread_source":"thread_title"}'
    title = [("session-id", "t"), ("thread-id", "t"), ("x-codex-turn-metadata", about)]
    where = box.ask("t", ["d rules", "u env", "u title for look"], headers=title, tools=(), **kind)
    assert where == Where("t", "1", "side")
    box.end("1")
    prompt = ["d rules", "d more", "u env", "u look", "a call", "t out"]
    assert box.turn("2", prompt, headers=main, **kind) == Where("1", "1", "next")
    risen = [*main[:2], ("x-codex-window-id", "m:1")]
    assert box.turn("3", ["d rules", "u summary=…"], headers=risen, **kind) == Where("1", "2", "compaction")
    spawned = [("session-id", "m"), ("thread-id", "c"), ("x-codex-parent-thread-id", "m")]
    assert box.turn("c1", ["u env", "u review"], headers=spawned, **kind) == Where("c1", "3", "subagent")


def test_a_request_that_names_the_response_before_it_follows_that() -> None:
    box = Recorder()
    kind = {"agent": "OpenAI Python", "route": Route.RESPONSES}
    box.ask("1", ["u look"], **kind)
    box.end("1", response_id="resp_1")
    box.ask("other", ["u else"], **kind)
    box.end("other", response_id="resp_2")
    where = box.ask("2", ["t result"], hints={"previous_response_id": "resp_1"}, **kind)
    assert where == Where("1", "1", "next")
    assert box.ask("3", ["t result b"], hints={"previous_response_id": "resp_1"}, **kind) == Where("1", "1", "branch")


def test_a_long_talk_that_nobody_saw_begin_does_not_go_on_from_another_with_the_same_preamble() -> None:
    """The tap began, or its memory ends, in the midst of it: roles alone prove nothing."""
    box = Recorder()
    for i, prompt in enumerate(steps(["u rules", "a ok", "u look"], ["x", "y", "z"])):
        assert box.turn(f"{i}", prompt).conversation == "0"
    other = steps(["u rules", "a ok", "u find"], [f"b{i}" for i in range(9)])[-1]
    assert box.turn("b", other) == Where("b", None, "first")
    assert box.turn("b2", [*other, "a more", "t of it"]) == Where("b", "b", "next")


def test_a_side_call_without_instructions_of_its_own_belongs_to_the_program_of_the_same_library() -> None:
    box = Recorder()
    library = {"headers": [("User-Agent", "OpenAI/Python 2.54.0")]}
    box.turn("1", ["u look"], agent="gptme", **library)
    side = box.turn("s", ["u title for look"], tools=(), system=TITLE, agent="OpenAI Python", **library)
    assert side == Where("s", "1", "side")


def test_gptme_summaries_between_the_steps() -> None:
    box = Recorder()
    kind = {"agent": "OpenAI Python"}
    for i, prompt in enumerate(steps(["s pid 41", "u look"], ["x", "y", "z"])):
        where = box.turn(f"{i}", prompt, **kind)
        assert where == Where("0", f"{i - 1}" if i else None, "next" if i else "first")
        side = box.turn(f"s{i}", [f"u sum up {i}"], tools=(), system=("you sum up",), calls=False, **kind)
        assert side == Where(f"s{i}", f"{i}", "side")


def test_aider_no_tools_constant_examples_and_a_file_list_that_changes() -> None:
    """As captured: the examples are the same in all conversations, the prompt's reminder leaves it on the next turn."""
    box = Recorder()
    kind = {"agent": "OpenAI Python", "tools": ()}
    shots = ["u ex", "a ex", "u ex2", "a ok2"]
    first = [*shots, "u map", "a Ok", "u files", "a Ok.", "u look+rules"]
    second = [*shots, "u map2", "a Ok", "u files2", "a Ok!", "u look", "a Done", "u I added a.txt"]
    assert box.turn("1", first, calls=False, **kind) == Where("1", None, "first")
    assert box.turn("2", second, calls=False, **kind) == Where("1", "1", "next")
    assert box.turn("b1", [*first[:-1], "u other+rules"], calls=False, **kind) == Where("b1", None, "first")
    box.now += 60
    assert box.turn("n1", first, calls=False, **kind) == Where("n1", None, "first")
    again = [*shots, "u map2", "a Ok", "u files3", "a Ok!", "u look", "a Done", "u I added a.txt"]
    assert box.turn("n2", again, calls=False, **kind) == Where("n1", "n1", "next")


def test_a_summary_in_place_of_the_history() -> None:
    box = Recorder()
    hints = {"x-session-id": "s"}
    prompts = steps(["u look"], [f"{i}" for i in range(8)])
    for i, prompt in enumerate(prompts):
        box.turn(f"{i}", prompt, hints=hints)
    box.turn("sum", [*prompts[-1], "a done", "u sum up"], hints=hints, calls=False)
    assert box.turn("c", ["u summary=…"], hints=hints) == Where("0", "sum", "compaction")
    assert box.turn("d", ["u summary=…", "a go", "t on"], hints=hints) == Where("0", "c", "next")


def test_a_summary_is_found_without_a_session_and_without_a_mark_in_one() -> None:
    for hints, words in (({}, "u summary=…"), ({"x-session-id": "s"}, "u what was done")):
        box = Recorder()
        prompts = steps(["u look"], [f"{i}" for i in range(8)])
        for i, prompt in enumerate(prompts):
            box.turn(f"{i}", prompt, hints=hints, calls=i < 8)
        assert box.turn("c", [words], hints=hints) == Where("0", "8", "compaction")


def test_a_summary_that_keeps_the_latest_messages() -> None:
    box = Recorder()
    prompts = steps(["u look"], [f"{i}" for i in range(8)])
    for i, prompt in enumerate(prompts):
        box.turn(f"{i}", prompt)
    kept = ["u the story so far", *prompts[-1][-4:], "a x", "t x"]
    assert box.turn("c", kept) == Where("0", "8", "compaction")


def test_a_new_talk_of_the_same_program_is_no_compaction() -> None:
    box = Recorder()
    for i, prompt in enumerate(steps(["u look"], [f"{i}" for i in range(8)])):
        box.turn(f"{i}", prompt, calls=i < 8)
    assert box.turn("n", ["u something else"]) == Where("n", None, "first")


def test_another_model_or_replica_in_the_middle_of_a_talk() -> None:
    box = Recorder()
    one, two, three, four = steps(["u look"], ["x", "y", "z"])
    box.turn("1", one)
    box.turn("2", two)
    assert box.turn("3", three, model="m-lora") == Where("1", "2", "next")
    assert box.turn("4", four, model="m-lora", upstream="http://127.0.0.1:9000") == Where("1", "3", "next")
    assert box.turn("5", one, model="third") == Where("5", None, "first")


def test_a_resumed_talk_in_a_new_session() -> None:
    box = Recorder()
    one, two = steps(["u look"], ["x"])
    box.turn("1", one, headers=[(CLAUDE, "s1")], agent="Claude Code")
    box.turn("2", two, headers=[(CLAUDE, "s1")], agent="Claude Code", calls=False)
    where = box.turn("3", [*two, "a done", "u more"], headers=[(CLAUDE, "s2")], agent="Claude Code")
    assert where == Where("1", "2", "next")
    where = box.turn("4", [*two, "a done", "u more", "a z", "t z"], headers=[(CLAUDE, "s2")], agent="Claude Code")
    assert where == Where("1", "3", "next")


def test_a_recorder_that_comes_in_the_middle() -> None:
    box = Recorder()
    prompts = steps(["u look"], [f"{i}" for i in range(6)])
    assert box.turn("1", prompts[3]).relation == "first"
    assert box.turn("2", prompts[4]) == Where("1", "1", "next")


def test_a_restart_goes_on_from_what_was_stored() -> None:
    box = Recorder()
    prompts = steps(["u look"], ["x", "y"])
    box.turn("1", prompts[0])
    box.turn("2", prompts[1])
    box.linker = Linker(box.turns.values())
    assert box.turn("3", prompts[2]) == Where("1", "2", "next")


def test_imported_runs_that_ran_at_once_stay_apart_though_their_ends_are_known() -> None:
    box = Recorder()
    for name in "ab":
        box.ask(f"{name}1", ["u look"])
        box.now += 30
        box.end(f"{name}1")
        box.now -= 30
    assert box.linker._turns[2].conversation == "c2"


def prompt_turn(id: int, pieces: list[tuple[str, int]], at: float, conversation: str | None = None) -> Captured:
    from capture_talks import part

    outline = [part("prompt", word, size=size) for word, size in pieces]
    kind = {"route": Route.COMPLETIONS, "model": "m", "agent": "aider", "outline": outline}
    return Captured(id=id, started_at=at, ended_at=at + 0.5, state=TurnState.DONE, conversation=conversation, **kind)


def test_a_growing_text_prompt_in_pieces() -> None:
    linker = Linker([prompt_turn(1, [("a", 2000), ("b", 2000), ("c", 300)], 10.0, "c1")])
    grown = prompt_turn(2, [("a", 2000), ("b", 2000), ("c+", 2000), ("d", 100)], 11.0)
    assert linker.place(grown)[:3] == ("c1", 1, "next")
    other = prompt_turn(2, [("a", 2000), ("b", 2000), ("e", 350)], 11.0)
    assert linker.place(other)[:3] == (None, None, "first")
    again = prompt_turn(2, [("a", 2000), ("b", 2000), ("c", 300)], 11.0)
    assert linker.place(again) == ("c1", 1, "retry", ())
    assert linker.place(again)[:3] == ("c1", 1, "retry")


@pytest.mark.parametrize("route", [Route.EMBEDDINGS, Route.OTHER])
def test_what_is_no_talk_stands_alone(route: Route) -> None:
    box = Recorder()
    for name in "12":
        assert box.turn(name, ["u same"], route=route) == Where(name, None, "first")
    assert box.turn("probe", [], tools=(), system=(), route=route) == Where("probe", None, "first")


def test_what_is_old_is_forgotten_and_nothing_stays_behind() -> None:
    box = Recorder()
    for i in range(LIMIT + 40):
        box.turn(f"{i}", [f"u {i}", f"a {i}", f"u more {i}"])
    linker = box.linker
    assert len(linker._turns) == LIMIT
    assert box.turn("gone", ["u 3", "a 3", "u more 3", "a x", "t x"]) == Where("gone", None, "first")
    assert box.turn("kept", ["u 99", "a 99", "u more 99", "a x", "t x"]) == Where("99", "99", "next")
    box.now += MAX_AGE_S + 10
    box.turn("new", ["u new"])
    assert len(linker._turns) == len(linker._whole) == len(linker._talks) == len(linker._openings) == 1
    assert len(linker._holders) == 1


def test_very_long_turns_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtop.capture.conversations.linker.MAX_MESSAGES", 1000)
    box = Recorder()
    for i in range(20):
        box.turn(f"{i}", [f"u {i}", *(f"a {i} {k}" for k in range(99))])
    assert list(box.linker._turns) == list(range(11, 21))
    assert box.turn("next", ["u 19", *(f"a 19 {k}" for k in range(99)), "t x"]) == Where("19", "19", "next")
    box.turn("long", [f"u {k}" for k in range(1500)])
    assert list(box.linker._turns) == [22], "one alone is always kept"
    box.turn("short", ["u short"])
    assert (list(box.linker._turns), box.linker._messages) == ([23], 1)


def test_placing_is_quick_against_many_long_turns() -> None:
    """512 turns of up to 500 parts: eight talks that grow at once, each turn with an edited first message as well."""
    box = Recorder()
    talks = {name: [f"u {name}"] for name in "abcdefgh"}
    for i in range(LIMIT // 8):
        for name, words in talks.items():
            box.turn(f"{name}{i}", words)
            for k in range(4):
                words += [f"a {name}{i}{k}", f"t {name}{i}{k}"]
    spent = []
    for i, (name, words) in enumerate(talks.items()):
        edited = [f"u {name} without", *words[1:]]
        for prompt in (words, edited, [*words[:100], "u anew"], [f"u unknown {i}", *(f"a {k}" for k in range(500))]):
            started = time.perf_counter()
            box.ask(f"{name}{len(prompt)}{prompt[0]}", prompt)
            spent.append(time.perf_counter() - started)
    assert sorted(spent)[len(spent) // 2] < 0.05  # the benchmark measures; this tells a quadratic slip
