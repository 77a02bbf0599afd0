"""A tiny language for stories about one run, and their full transcript.

A script has one event on each line; `#` begins a comment, `&` joins events into one batch:

    run min=2 max=4 last_call=30        settings of the run; must come first
    join node7 slot=pod-1 rank=0        also: rack, workers, role, host, min, max, why, new=yes
    rejoin node7 why="nodes wait"       a join that knows the round it took part in last
    leave node7 why=SIGTERM             finish node7       fail node7 code=3
    lost node66 lease                   also: connection, died; beats=N as the host had seen
    cut node7                           back node7         beat node7
    timer last-call                     also: rejoin, replacement, steady, exclusion number=N;
                                        those that run now, unless
                                        round=N, call=N or incarnation=N are given
    close by=alice why="wrong data"
    notify node7 why="spot machine" in=25       also: by
    exclude node7 by=alice for=60               also: address, slot instead of a bare name; why
    admit node7 by=alice

`round=` and `incarnation=` of any event stand for a node (or host) that knows another one.
"""

import shlex
from collections.abc import Callable

from tests.core.builders import a_node

from rallypoint.core.advance import Step, advance, timer_seconds
from rallypoint.core.events import (
    Admit,
    Beat,
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    ExclusionOver,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Message,
    NoticeGiven,
    Notify,
    Parked,
    Reconnected,
    Refused,
    RejoinOver,
    ReplacementWaitOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    SettingsHeld,
    SteadyOver,
    Timer,
    WaitingChanged,
)
from rallypoint.core.explain import phase_name
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    PLACES,
    Aspect,
    Failure,
    LastCall,
    RunState,
    Sealed,
    Settings,
    Verdict,
    round_number,
)

Options = dict[str, str]
CAUSES = {"lease": Cause.LEASE, "connection": Cause.DISCONNECT, "died": Cause.DIED}
SETTINGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "min": ("min_nodes", int),
    "max": ("max_nodes", int),
    "target": ("target_nodes", int),
    "restarts": ("max_restarts", int),
    "last_call": ("last_call_seconds", float),
    "rejoin": ("rejoin_timeout_seconds", float),
    "replacement": ("replacement_wait_seconds", float),
    "steady": ("steady_after_seconds", float),
    "quarantine": ("quarantine_failures", int),
    "quarantine_time": ("quarantine_time_seconds", float),
}
NODE: dict[str, tuple[str, Callable[[str], object]]] = {
    "slot": ("slot", str),
    "rank": ("node_rank", int),
    "rack": ("topology", str),
    "workers": ("local_world_size", int),
    "role": ("role", str),
    "host": ("host", str),
    "port": ("port", int),
    "address": ("address", str),
}


class Interpreter:
    """Plays one script, and writes down all that follows from each line."""

    def __init__(self) -> None:
        self.state = RunState(run_id="demo")
        self.given: dict[str, object] = {"min_nodes": 1, "max_nodes": 1}
        self.nodes: dict[str, dict[str, object]] = {}
        self.lines: list[str] = []

    def play(self, script: str) -> str:
        """Return the transcript of a script."""
        for number, line in enumerate(script.splitlines(), 1):
            text = line.strip()
            if text.startswith("#"):
                self.lines.append(text)
            elif text.startswith("run "):
                self.lines.append(f"> {text}")
                self.given |= _fields(_options(shlex.split(text)[1:]), SETTINGS)
            elif text:
                try:
                    events = [self._event(*shlex.split(part)) for part in text.split(" & ")]
                except (KeyError, ValueError, TypeError) as error:
                    raise ValueError(f"line {number}, {text!r}: {error!r}") from error
                self._step(text, events)
            else:
                self.lines.append("")
        return "\n".join(self.lines).strip() + "\n"

    def _step(self, text: str, events: list[Event]) -> None:
        step = advance(self.state, *events)
        broken = check_state(step.state) + check_step(self.state, step.state, step.messages)
        self.lines += [f"> {text}", f"  {step.reason}"]
        self.lines += [f"  to {', '.join(s.to)}: {tell(s.message)}" for s in step.messages]
        if step.state == self.state:
            self.lines.append("  = nothing changed")
        else:
            self.lines.append(f"  = {summary(step.state)}")
            self.lines += [f"  {line}" for line in timers(step)]
        self.lines += [f"  BROKEN: {sentence}" for sentence in broken]
        self.state = step.state

    # -- words to events ------------------------------------------------------------------

    def _event(self, word: str, *rest: str) -> Event:
        names, options = [w for w in rest if "=" not in w], _options(rest)
        number = int(options.get("round", round_number(self.state.phase)))
        incarnation = int(options.get("incarnation", self.state.incarnation))
        why, at = options.get("why", ""), options.get("at", "")
        match word, *names:
            case "join", name:
                return self._join(name, options, int(options.get("round", 0)))
            case "rejoin", name:
                before = 0 if isinstance(self.state.phase, Sealed) else 1
                return self._join(name, options, int(options.get("round", number - before)))
            case "leave", name:
                return Leave(name, why)
            case "finish", name:
                return Finish(name, incarnation, number, at)
            case "fail", name:
                return Fail(name, incarnation, number, _failure(name, options, at))
            case "lost", name, cause:
                return Lost(name, CAUSES[cause], int(options.get("beats", 0)))
            case "notify", name:
                left = float(options["in"]) if "in" in options else None
                return Notify(name, why, options.get("by", ""), left)
            case (("exclude" | "admit"), *_):
                return _about(word, names, options)
            case "cut", name:
                return Disconnected(name)
            case "back", name:
                return Reconnected(name)
            case "beat", name:
                return Beat(name)
            case ["close"]:
                meant = int(options.get("incarnation", 0))
                return Close(options.get("by", "somebody"), why, at, meant)
            case "timer", name:
                return self._timer(name, incarnation, number, options)
        raise ValueError(f"unknown event {word!r} with {names}")

    def _join(self, name: str, options: Options, after: int) -> Join:
        known = self.nodes.setdefault(name, {})
        known |= _fields(options, NODE)
        settings = Settings(**(self.given | _fields(options, SETTINGS)))  # type: ignore[arg-type] # each is made by its own word
        return Join(
            node=a_node(name, **known),
            settings=settings,
            incarnation=int(options.get("incarnation", self.state.incarnation if after else 0)),
            after=after,
            why=options.get("why", ""),
            new_incarnation=options.get("new") == "yes",
        )

    def _timer(self, name: str, incarnation: int, number: int, options: Options) -> Timer:
        phase = self.state.phase
        match name:
            case "last-call":
                call = phase.call if isinstance(phase, LastCall) else self.state.calls
                return LastCallOver(incarnation, number, int(options.get("call", call)))
            case "rejoin":
                return RejoinOver(incarnation, number)
            case "replacement":
                return ReplacementWaitOver(incarnation, number)
            case "steady":
                return SteadyOver(incarnation, number)
            case "exclusion":
                return ExclusionOver(int(options["number"]))
        raise ValueError(f"unknown timer {name!r}")


def _about(word: str, names: list[str], options: Options) -> Event:
    """Return an event about nodes that are named by id, or by address= or slot=."""
    aspect, name = next(
        ((a, options[a.value]) for a in Aspect if a.value in options), (Aspect.NODE, "".join(names))
    )
    by, at = options.get("by", "somebody"), options.get("at", "")
    if word == "admit":
        return Admit(aspect, name, by, at)
    seconds = float(options["for"]) if "for" in options else None
    return Exclude(aspect, name, options.get("why", ""), by, seconds, at)


def _options(words: tuple[str, ...] | list[str]) -> Options:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _fields(
    options: Options, known: dict[str, tuple[str, Callable[[str], object]]]
) -> dict[str, object]:
    return {name: kind(options[word]) for word, (name, kind) in known.items() if word in options}


def _failure(name: str, options: Options, at: str) -> Failure:
    signal = options.get("signal", "")
    code = None if signal else int(options.get("code", 1))
    return Failure(name, int(options.get("worker", 0)), 0, code, signal, at)


# -- what follows, in words -------------------------------------------------------------------


def tell(message: Message) -> str:
    """Return a message as one line."""
    match message:
        case RoundSealed(record):
            seats = " ".join(
                f"{seat.rank}={seat.node.id}[{seat.worker_offset}:"
                f"{seat.worker_offset + seat.node.local_world_size}]"
                for seat in record.seats
            )
            where = f"{record.master_addr}:{record.master_port}"
            return f"ROUND {record.number} SEALED {seats} of {record.world_size} meet at {where}"
        case RoundOpened(_, number, why, lost):
            gone = f" (gone: {', '.join(lost)})" if lost else ""
            return f"ROUND {number} OPENED because {why}{gone}"
        case Parked(_, _, spare, why):
            return f"{'SPARE' if spare else 'WAIT'}: {why}"
        case WaitingChanged(_, _, count):
            return f"{count} WAIT"
        case NoticeGiven(_, _, _, label, why, by, seconds):
            when = "" if seconds is None else f", in {seconds:g} s"
            return f"NOTICE by {by}: {label} will leave: {why}{when}"
        case SettingsHeld(why):
            return f"HOLDS: {why}"
        case RunClosed(_, _, by, at, why, verdict):
            how = "FINISHED" if verdict is Verdict.FINISHED else f"CLOSED ({verdict.value})"
            return f"{how}{_at(at)} by {by}: {why}"
        case Refused(refusal, why):
            return f"REFUSED ({refusal.value}): {why}"


def _at(at: str) -> str:
    return f" at {at}" if at else ""


def summary(state: RunState) -> str:
    """Return a state as one line: phase, places, and what is remembered."""
    parts = [f"{phase_name(state)} {round_number(state.phase)}"]
    for place in PLACES:
        if members := getattr(state, place):
            cut = ["" if m.connected else " (cut)" for m in members.values()]
            nodes = [name + mark for name, mark in zip(members, cut, strict=True)]
            parts.append(f"{place}: {' '.join(nodes)}")
    if state.fenced:
        parts.append(f"fenced: {' '.join(state.fenced)}")
    if state.restarts:
        parts.append(f"restarts: {state.restarts}")
    if state.failing:
        parts.append(f"failing: {state.failing}")
    if state.notices:
        parts.append(f"will leave: {' '.join(state.notices)}")
    if state.exclusions:
        names = (f"{x.number}={x.aspect} {x.name}" for x in state.exclusions)
        parts.append(f"excluded: {', '.join(names)}")
    if state.incarnation > 1:
        parts.append(f"incarnation: {state.incarnation}")
    return " | ".join(parts)


def timers(step: Step) -> list[str]:
    """Return the running timers, one line each."""
    lines = []
    for timer in step.timers:
        seconds = timer_seconds(step.state, timer)
        call = f", call {timer.call}" if isinstance(timer, LastCallOver) else ""
        of = timer.number if isinstance(timer, ExclusionOver) else f"round {timer.round}"
        lines.append(f"~ {type(timer).__name__} of {of}{call} in {seconds:g} s")
    return lines
