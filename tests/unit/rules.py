"""
The rules of the core, and how each of them is switched off, to see that it is missed.

A rule of `Partition` is switched off by a class in front of it, one of another module by a function in the place of the
shipped one. Rules that owners keep around the core are switched off in `walk.py` itself, by name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

from kafka_timers.core import accepting, decisions, hour, ignored, partition, reconcile, takeover, tick_clock
from kafka_timers.core.backlog import Tally
from kafka_timers.core.changes import Changes, Head, Scan, Swept
from kafka_timers.core.contents import Contents
from kafka_timers.core.keys import Copied, copied_in, first_key, late_key, parts_of
from kafka_timers.core.partition import Partition
from kafka_timers.core.sweep import Sweep
from kafka_timers.core.versions import Decided, Effect, Original, TimerRecord, Version
from kafka_timers.core.wire import Condition, Sealed, is_complete, is_far


@dataclass(frozen=True, slots=True)
class Rule:
    """
    A rule, and the patches that break it.

    Attributes:
        text: the rule.
        partition: a class to put in front of `Partition`.
        patches: module or class, name, and a function that makes the new object out of the old one.
        needs_lake: whether it is about far requests.
    """

    text: str
    partition: type[Partition] | None = None
    patches: Sequence[tuple[ModuleType | type, str, Callable[[Any], Any]]] = ()
    needs_lake: bool = False


def _by_its_due(is_over: Callable[[Version, int], bool]) -> Callable[[Version, int], bool]:
    return lambda version, appended_ms: is_over(version if version.far else version._replace(since_ms=0), appended_ms)


# --- classes in front of Partition -----------------------------------------------------------------------------------


class _Without(Partition):
    """A partition that looks away from parts of its head."""

    def without(self, **parts: Any) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.head = replace(self.head, **parts)
        return other


class _NotBehindTheScan(_Without):
    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        scan, at = self.scan, copied.at if copied else offset
        if scan and due_ms < scan.end_ms and at >= scan.snapshot:
            return Partition.place(self.without(scan=None), due_ms, offset, copied)
        return super().place(due_ms, offset, copied)


class _SealedScanForgotten(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        return super().acquire(filter(is_complete, seals), local, **more)


class _ScanGetsNewSnapshot(Partition):
    def begin(self, end_ms: int) -> None:
        super().begin(end_ms)
        assert self.scan
        self.head = replace(self.head, scan=self.scan._replace(snapshot=self.position))


class _OpenScanIsOverwritten(Partition):
    def begin(self, end_ms: int) -> None:
        # That which this owner has begun itself goes on.
        self.head = replace(self.head, scan=Scan(end_ms, self.position))


class _ThroughIgnored(_Without):
    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        scan = self.scan and self.scan._replace(through=b"")
        return Partition.place(self.without(scan=scan), due_ms, offset, copied)


class _LowWaterKeys(Partition):
    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        key, scan = super().place(due_ms, offset, copied), self.scan
        if key is not None and scan and due_ms < self.sealed_ms and offset < scan.snapshot:
            return late_key(scan.end_ms, offset, due_ms, copied)
        return key


class _SnapshotIgnored(Partition):
    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        return None if due_ms < self.sealed_ms else super().place(due_ms, offset, copied)


class _NothingMustBeRead(Partition):
    @property
    def must_read_to(self) -> int:
        return 0


class _LastSnapshotMustBeRead(Partition):
    @property
    def must_read_to(self) -> int:
        return self.head.snapshot


class _StoreKeptBelowRestoreFrom(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        kept = super().acquire(seals, local, **more)
        if local is not None:
            self.head = replace(self.head, position=local.position)
        return kept or local is not None


class _StaleSlices(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        seals = list(seals)
        kept = super().acquire(seals, local, **more)
        slices = [seal for seal in seals if not is_complete(seal)]
        if self.scan is None and slices:
            scan = Scan(slices[-1].end_ms, slices[-1].fence, slices[-1].through)
            self.head = replace(self.head, scan=scan)
        return kept


class _RestoreFromPosition(Partition):
    def _lowest(self, tally: Tally, at_ms: int) -> int:
        return self.position


class _LastSealAlone(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        return super().acquire(list(seals)[-1:], local, **more)


class _LocalIsNotAsked(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        return super().acquire(seals, local and replace(local, sealed_ms=0, snapshot=0, scan=None), **more)


class _WhenItIsRead(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        return super().effect(before, by, 0)


class _ScannedIsWithdrawn(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        effect = super().effect(before, by, appended_ms)
        is_scanned = not (before.far or appended_ms >= before.due_ms or self.is_done(before))
        return Effect.WITHDRAWS if is_scanned else effect


class _UndecidedIsTooLate(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        effect = super().effect(before, by, appended_ms)
        return Effect.TOO_LATE if effect is Effect.UNDECIDED else effect


class _ForgottenIsTooLate(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        effect = super().effect(before, by, appended_ms)
        return Effect.TOO_LATE if effect is Effect.FORGOTTEN else effect


class _OriginalsOffset(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        effect, scan = super().effect(before, by, appended_ms), self.scan
        if effect is not Effect.WITHDRAWS or before.far or not scan or before.due_ms >= scan.end_ms:
            return effect
        is_covered = before.offset < scan.snapshot <= by
        return (Effect.TOO_LATE if scan.through else Effect.UNDECIDED) if is_covered else effect


class _AnswersAgain(Partition):
    def is_answered(self, offset: int) -> bool:
        return False


class _MillisNeverCount(Partition):
    def effect(self, before: Version, by: int, appended_ms: int) -> Effect:
        return Effect.TOO_LATE if appended_ms >= before.second * 1000 else super().effect(before, by, appended_ms)


class _IgnoredIsNotSealed(Partition):
    def seal(self, contents: Contents, **more: Any) -> Sealed:
        seal = super().seal(contents, **more)
        del seal.ignored[:]
        return seal


class _IgnoredByItsDueAlone(Partition):
    def sealed(self, seal: Sealed, contents: Contents, drop_before: bytes | None = None) -> Changes:
        changes = super().sealed(seal, contents, drop_before)
        changes.unignored += [at for at, due in self.ignored.items() if 0 < due < changes.head.sealed_ms]
        return changes


class _HasAlwaysReplaced(Partition):
    def has_replaced(self, offset: int, appended_ms: int) -> bool:
        return offset < self.replaced_below


class _HasNeverReplaced(Partition):
    def has_replaced(self, offset: int, appended_ms: int) -> bool:
        return False


class _HasNeverStood(Partition):
    def has_stood(self, offset: int, due_ms: int) -> bool:
        return False


class _KnowsAll(Partition):
    def acquire(self, seals: Iterable[Sealed], local: Head | None, **more: Any) -> bool:
        kept = super().acquire(seals, local, **more)
        self.head = replace(self.head, known_from=0)
        return kept


class _DoneByTheOriginal(_Without):
    def place(self, due_ms: int, offset: int, copied: Copied | None = None) -> bytes | None:
        key = super().place(due_ms, offset, copied)
        done = copied is not None and super().place(due_ms, offset, Copied(offset, copied.decided)) is None
        return None if done else key


class _SweptWithinTheOneBefore(Partition):
    def sweep(self, begun_us: int, below: int, ahead_ms: int) -> Sweep | None:
        before = self.head
        self.head = replace(before, sweeps=before.sweeps[1:])
        made = super().sweep(begun_us, below, ahead_ms)
        self.head = before
        return made


class _SweptTwiceAtOnce(Partition):
    def sweep(self, begun_us: int, below: int, ahead_ms: int) -> Sweep | None:
        before, self.swept = self.swept, None
        made = super().sweep(begun_us, below, ahead_ms)
        self.swept = before
        return made


class _SweptBeforeTheScan(Partition):
    def sweep(self, begun_us: int, below: int, ahead_ms: int) -> Sweep | None:
        made = super().sweep(begun_us, below, ahead_ms)
        return made and Sweep(begun_us, below, self.position, self.sealed_ms + ahead_ms)


# --- functions in the place of others --------------------------------------------------------------------------------


def _mapped_alone(_: Any) -> Any:
    def sweep(self: Any, below: int, to: int) -> None:
        self._below, self._to = below, to

    return sweep


def _always_repeated(now: Partition, offset: int, due_ms: int, by: int | None = None) -> int:
    return now.head.swept.since if offset < now.head.swept.below else offset


def _last_told(tell: Any) -> Any:
    return lambda sweeps, seal: tell(sweeps[-1:], seal)


def _taken(low: int | None, high: int | None) -> Any:
    """Return the patch that has offsets from *low* on taken, and those up to *high*; None as shipped."""

    def to_take(head: Head) -> list[tuple[Swept, range]]:
        shipped: list[tuple[Swept, range]] = _TO_TAKE.fget(head)  # type: ignore[attr-defined]
        return [
            (swept, range(each.start if low is None else low, each.stop if high is None else high))
            for swept, each in shipped
        ]

    return lambda _: property(to_take)


_TO_TAKE = Head.to_take


def _instead(function: Any) -> Callable[[Any], Any]:
    return lambda _: function


def _own_second(now: Partition, key: bytes) -> bytes | None:
    moment_ms = int.from_bytes(key[:8], "big") * 1000 + int.from_bytes(key[8:10], "big")
    return now.place(moment_ms, parts_of(key)[1], copied_in(key))


def _as_it_says(tick_second: Any) -> Any:
    return lambda second, *more: None if tick_second(second, *more) is None else second


def _beyond_by_end_alone(scan: Scan | None, local: Head) -> bool:
    own = local.scan
    if scan is None or (own is not None and own.end_ms == scan.end_ms):
        return False
    return local.position > scan.snapshot


def _no_memory_of_done(reconciled: Any) -> Any:
    def reconcile_(*given: Any, has_ids: bool) -> Changes:
        changes: Changes = reconciled(*given, has_ids=False)
        return changes

    return reconcile_


def _no_marks_moved(marked: Any) -> Any:
    def marks(now: Partition, marks: Any, lookup: Any, changes: Changes) -> None:
        marked(now, marks, lookup, changes)
        changes.marks = dict.fromkeys(changes.marks)

    return marks


def _no_doubt(marked: Any) -> Any:
    def marks(now: Partition, marks: Any, lookup: Any, changes: Changes) -> None:
        marked(now, marks, lookup, changes)
        changes.versions = {}

    return marks


def _deciding(change: Callable[[Decided], None]) -> Callable[[Any], Any]:
    """Return the patch that has `decide` leave something out."""

    def patch(decide: Any) -> Any:
        def changed(*given: Any) -> Decided:
            decided: Decided = decide(*given)
            change(decided)
            return decided

        return changed

    return patch


def _forget_cancels(decided: Decided) -> None:
    decided.versions = {name: each for name, each in decided.versions.items() if not each or each.due_ms}


def _forget_last_records(decided: Decided) -> None:
    versions = decided.versions.items()
    decided.versions = {name: each._replace(by=0) if each and each.due_ms else each for name, each in versions}


def _remember_nothing(decided: Decided) -> None:
    decided.remember = []


def _without_done_copies(decide: Any) -> Any:
    def changed(records: Iterable[TimerRecord], known: Any, now: Partition) -> Decided:
        def is_held(each: TimerRecord) -> bool:
            of = each.original
            return not of or now.place(each.due_ms or 0, of.offset, Copied(each.offset, of.decided)) is not None

        decided: Decided = decide(filter(is_held, records), known, now)
        return decided

    return changed


def _without_names_of_copies(decide: Any) -> Any:
    def changed(records: Iterable[TimerRecord], known: Any, now: Partition) -> Decided:
        decided: Decided = decide(records, {name: each for name, each in known.items() if name[:1] != b"\xff"}, now)
        return decided

    return changed


def _original(change: Callable[[TimerRecord, Original], Original]) -> Callable[[Any], Any]:
    """Return the patch that has a copy say something else of its original."""

    def patch(timer_record: Any) -> Any:
        def changed(*given: Any, **more: Any) -> TimerRecord:
            record: TimerRecord = timer_record(*given, **more)
            return record._replace(original=record.original and change(record, record.original))

        return changed

    return patch


def _far_copies_are_left(judge: Any) -> Any:
    def changed(record: Any, now: Partition, *more: Any) -> Any:
        judged = judge(record, now, *more)
        is_copy = judged.named is not None and judged.named.original is not None
        if is_copy and is_far(judged.named.due_ms // 1000, record.timestamp // 1000, now.horizon_s):
            return judged._replace(named=None, is_far=True)
        return judged

    return changed


def _absent_when_done(holds: Any) -> Any:
    def changed(record: TimerRecord, before: Version | None, *more: Any) -> bool:
        is_absent = record.condition == Condition.IF_ABSENT and before is not None
        if is_absent and before is not None and record.appended_ms >= before.second * 1000:
            return True
        return bool(holds(record, before, *more))

    return changed


def _excepts_what_waits(holds: Any) -> Any:
    def changed(record: TimerRecord, before: Version | None, *more: Any) -> bool:
        is_absent = record.condition == Condition.IF_ABSENT and before is not None
        if is_absent and before is not None and before.offset == record.expected:
            return True
        return bool(holds(record, before, *more))

    return changed


def _any_is_meant(holds: Any) -> Any:
    def changed(record: TimerRecord, *more: Any) -> bool:
        return bool(holds(record._replace(expected=None), *more))

    return changed


def _cancels_are_not_read_again(remember: Any) -> Any:
    def changed(record: TimerRecord, known: Any, out: Decided) -> None:
        before = list(out.remember)
        remember(record, known, out)
        out.remember[:] = before

    return changed


def _ignored_are_judged_anew(is_taken_back: Any) -> Any:
    def changed(record: TimerRecord, known: Any, partition: Partition) -> bool:
        before, partition.ignored = partition.ignored, {}
        try:
            return bool(is_taken_back(record, known, partition))
        finally:
            partition.ignored = before

    return changed


_LAKE = {"needs_lake": True}

CORE_RULES: dict[str, Rule] = {
    "behind the scan": Rule("what is read during a scan is kept behind it", _NotBehindTheScan),
    "own second": Rule(
        "whether a late request is done is told by its own second",
        patches=[(reconcile, "key_by_now", _instead(_own_second))],
    ),
    "sealed scan redone": Rule("a scan of which a slice is sealed goes on", _SealedScanForgotten),
    "scan keeps its snapshot": Rule("a scan that goes on keeps its snapshot", _ScanGetsNewSnapshot),
    "open scan first": Rule("a scan that was left open comes first", _OpenScanIsOverwritten),
    "through": Rule("what a slice has fired is done", _ThroughIgnored),
    "late key from the seal": Rule("a late key follows from the last complete seal", _LowWaterKeys),
    "offset below the snapshot": Rule("what lies behind the snapshot is not done", _SnapshotIgnored),
    "must_read_to": Rule("nothing is scanned before the last snapshot is read up to", _NothingMustBeRead),
    "must_read_to of the scan": Rule("nor before that of the open scan is", _LastSnapshotMustBeRead),
    "store below restore_from": Rule("a store that ends below restore_from is dropped", _StoreKeptBelowRestoreFrom),
    "unreconciled": Rule(
        "rows are reconciled up to where a scan has looked",
        patches=[(reconcile, "unreconciled", _instead(lambda now, local: first_key(now.sealed_ms)))],
    ),
    "unreconciled by local": Rule(
        "also up to where the store's own scan has looked",
        patches=[(reconcile, "unreconciled", _instead(lambda now, local: first_key(now.scanned_ms + 1)))],
    ),
    "restore_from": Rule("restore_from stays below what waits", _RestoreFromPosition),
    "complete seal and slices": Rule("both the last complete seal and the slices behind it count", _LastSealAlone),
    "slices above the seal": Rule("a slice counts with the complete seal that it stands on", _StaleSlices),
    "local second": Rule("a store knows what is done, where the seals are gone", _LocalIsNotAsked),
    "beyond the scan": Rule(
        "a store that has read beyond a scan which others have begun is dropped",
        patches=[(takeover, "_has_read_beyond", _instead(lambda scan, local: False))],
    ),
    "beyond the scan's snapshot": Rule(
        "a scan with the same end and another snapshot is not one's own",
        patches=[(takeover, "_has_read_beyond", _instead(_beyond_by_end_alone))],
    ),
    "milliseconds": Rule("what may withdraw a request may do so up to its millisecond", _MillisNeverCount),
    "due rule": Rule("a record withdraws what it was appended in time for", _WhenItIsRead),
    "what a scan covers": Rule("what a scan covers is not withdrawn behind its snapshot", _ScannedIsWithdrawn),
    "undecided until sealed": Rule("what an open scan may fire is decided once a slice is sealed", _UndecidedIsTooLate),
    "forgotten": Rule("what nobody can tell any more is not told", _ForgottenIsTooLate),
    "answered before": Rule("what a seal covers is not answered again", _AnswersAgain),
    "remembered": Rule(
        "chunks with ids are remembered for an hour", patches=[(accepting, "decide", _deciding(_remember_nothing))]
    ),
    "remembered when reconciled": Rule(
        "what others have done is remembered too", patches=[(reconcile, "reconcile", _no_memory_of_done)]
    ),
    "no row within a batch": Rule(
        "what is reconciled into a batch takes it apart", patches=[(reconcile, "bisect", _instead(lambda keys, key: 0))]
    ),
    "marks move": Rule(
        "a mark gets the key of its request by now", patches=[(reconcile, "_reconcile_marks", _no_marks_moved)]
    ),
    "doubt": Rule(
        "what was cancelled here and is done elsewhere is not known as cancelled",
        patches=[(reconcile, "_reconcile_marks", _no_doubt)],
    ),
    "tick counts as appended": Rule(
        "a tick counts as no more than the second of its append",
        patches=[(tick_clock, "tick_second", _as_it_says)],
    ),
}

CONDITION_RULES: dict[str, Rule] = {
    "ignored is sealed": Rule("what waits in vain is named in each seal", _IgnoredIsNotSealed),
    "ignored until done": Rule("what came late and waits in vain is named until it is done", _IgnoredByItsDueAlone),
    "ignored elsewhere": Rule(
        "a store that lets stand what seals ignore is dropped",
        patches=[(takeover, "_has_judged_otherwise", _instead(lambda *_: False))],
    ),
    "replaced an hour ago": Rule("what was replaced within the hour is read again", _HasAlwaysReplaced),
    "replaced what is not read": Rule("what has replaced something long ago stands", _HasNeverReplaced),
    "stood before": Rule("what an owner before has let stand stands", _HasNeverStood),
    "absent for an hour": Rule(
        "an id is known for an hour after its second", patches=[(decisions, "_holds", _absent_when_done)]
    ),
    "excepted once it is due": Rule(
        "IF_ABSENT counts the request that it names until its second",
        patches=[(decisions, "_holds", _excepts_what_waits)],
    ),
    "the one that is meant": Rule(
        "IF_PENDING means the request that it names", patches=[(decisions, "_holds", _any_is_meant)]
    ),
    "an hour after its cancel": Rule(
        "a cancelled id is known for an hour after its cancel, and no longer",
        patches=[(Version, "is_over", _by_its_due)],
    ),
    "forgotten is known": Rule(
        "of an id of which nobody can tell more, it is known that there is one",
        patches=[(Version, "doubted", _instead(property(lambda version: None)))],
    ),
}

FORWARD_RULES: dict[str, Rule] = {
    "overtaken by a cancel": Rule(
        "a cancel takes back what was appended before it in another partition",
        patches=[(decisions, "_is_taken_back", _instead(lambda *_: False))],
    ),
    "cancels are read again": Rule(
        "a cancel of the last hour is read again",
        patches=[(decisions, "_remember_cancel", _cancels_are_not_read_again)],
    ),
    "overtaken stays so": Rule(
        "what a cancel has overtaken stays ignored", patches=[(decisions, "_is_taken_back", _ignored_are_judged_anew)]
    ),
}

LAKE_CORE_RULES: dict[str, Rule] = {
    "known from": Rule("a copy that was decided below what is known has the log read again", _KnowsAll, **_LAKE),
    "done by its own offset": Rule(
        "whether a copy is done is told by where it lies itself", _DoneByTheOriginal, **_LAKE
    ),
    "covered by its own offset": Rule(
        "whether a scan covers a copy is told by where it lies itself", _OriginalsOffset, **_LAKE
    ),
    "done copies are known": Rule(
        "a copy that is done is known all the same, by its original",
        patches=[(accepting, "decide", _without_done_copies)],
        **_LAKE,
    ),
    "a copy is never far": Rule(
        "a copy is kept however far ahead it comes", patches=[(accepting, "_judge", _far_copies_are_left)], **_LAKE
    ),
    "forgotten by its own offset": Rule(
        "an id is not forgotten with the original of its copy",
        patches=[(Version, "made_at", _instead(Version.latest))],
        **_LAKE,
    ),
    "overtaken": Rule(
        "a copy means nothing if there is a record of its id that its decision did not know",
        patches=[(accepting, "timer_record", _original(lambda record, of: of._replace(decided=record.offset)))],
        **_LAKE,
    ),
    "repeated": Rule(
        "a copy means nothing if there is one of the same original",
        patches=[(accepting, "decide", _without_names_of_copies)],
        **_LAKE,
    ),
    "stale": Rule(
        "a copy means nothing half an hour after its decision",
        patches=[
            (
                accepting,
                "timer_record",
                _original(lambda record, of: of._replace(decided_s=record.appended_ms // 1000)),
            )
        ],
        **_LAKE,
    ),
    "unheld cancels": Rule(
        "a cancel of an id that is not held is remembered",
        patches=[(accepting, "decide", _deciding(_forget_cancels))],
        **_LAKE,
    ),
    "last record": Rule(
        "of an id that has a request, a cancel behind it is remembered too",
        patches=[(accepting, "decide", _deciding(_forget_last_records))],
        **_LAKE,
    ),
}


def _sealed_alone(shipped: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda sealed_ms, passed_ms: shipped(sealed_ms, 1 << 60)


HOUR_RULES: dict[str, Rule] = {
    "hours of what is read": Rule(
        "an id is forgotten once what was appended within its hour is read, not only sealed",
        patches=[(module, "forgets_ms", _sealed_alone) for module in (partition, ignored)],
    ),
    "times step back": Rule(
        "the append time of a record is no proof that those behind it were not appended before",
        patches=[(hour, "SLACK_MS", lambda _: 0)],
    ),
}

SWEEP_RULES: dict[str, Rule] = {
    "counts where it is repeated": Rule(
        "what a sweep repeats counts where it is repeated, also later",
        patches=[(Tally, "counts_in", _instead(lambda tally, chunk: chunk))],
    ),
    "read again where it lies": Rule(
        "what was withdrawn while a sweep was written is read again where it lies",
        patches=[(Partition, "read_again_at", _instead(_always_repeated))],
    ),
    "counts move with a sweep": Rule(
        "what was pending counts where it is repeated", patches=[(Tally, "sweep", _mapped_alone)]
    ),
    "the sweep before": Rule(
        "a sweep is told of until restore_from lies behind it", patches=[(partition, "tell", _last_told)]
    ),
    "what is to be read is not taken": Rule(
        "of a sweep, nothing is taken that is still to be read", patches=[(Head, "to_take", _taken(None, 1 << 60))]
    ),
    "taken once": Rule(
        "what the sweep before has is not taken from the last one", patches=[(Head, "to_take", _taken(0, None))]
    ),
    "behind the one before": Rule(
        "a sweep begins behind the begin of the one before, and is the second one told of", _SweptWithinTheOneBefore
    ),
    "one sweep at a time": Rule("a sweep begins once the one before it is told of", _SweptTwiceAtOnce),
    "late ones fire before": Rule("a sweep leaves out nothing late that fires behind it", _SweptBeforeTheScan),
}

# Kept by `walk.py`, as the worker does.
OWNER_RULES: dict[str, Rule] = {
    "fencing": Rule("a takeover shuts out the owner before at the broker"),
    "position is the snapshot": Rule("a scan's snapshot is the position of the store, not the end asked for"),
    "reconcile": Rule("the rows of a kept store are reconciled"),
    "old ticks": Rule("a tick at or below the sealed second is passed over"),
    "scan in the store": Rule("a store tells the scan that it has open"),
    "drop after the seal": Rule("rows are dropped only once their seal is durable"),
    "seal keys": Rule("slices have another record key, so that compaction keeps the last complete seal"),
    "epoch check": Rule("before anything is said to be withdrawn, the broker is asked whether this is the owner"),
    "answered before sealed": Rule("a seal waits for the answers to what it covers"),
    "answers are kept": Rule("answers that have not left are in the store"),
    "taken from sweeps": Rule("an owner without a store takes what sweeps have repeated"),
    "withdrawn are not repeated": Rule("a sweep leaves out what is withdrawn"),
    "told when all is sealed": Rule(
        "a sweep is told of once all is sealed that it has left out, and all of it is read"
    ),
    "each sweep has a name": Rule("the records of a sweep that was broken off are none of the next one's"),
    "verdict from the log": Rule("whether a record is refused follows from its bytes"),
    "high watermark": Rule("records of an open transaction are waited for before an id is forgotten"),
    "decide on all": Rule("the lake makes no copy of what was withdrawn, as far as it has landed", **_LAKE),
    "decide on what is read": Rule("the lake decides on what it has landed up to the offset that it names", **_LAKE),
    "promote anew": Rule("a request whose copy came to nothing is promoted again", **_LAKE),
    "decided before it is landed": Rule("the moment of a decision is before what it does not know", **_LAKE),
}

RULES = CORE_RULES | CONDITION_RULES | FORWARD_RULES | LAKE_CORE_RULES | HOUR_RULES | SWEEP_RULES | OWNER_RULES


@contextmanager
def switched_off(names: Iterable[str]) -> Iterator[type[Partition]]:
    """Switch rules off; yields the class of partitions that breaks them."""
    rules = [RULES[name] for name in names]
    broken = [rule.partition for rule in rules if rule.partition]
    patches = [(module, name, patch, getattr(module, name)) for rule in rules for module, name, patch in rule.patches]
    try:
        for module, name, patch, shipped in patches:
            setattr(module, name, patch(shipped))
        yield type("Partition", (*broken, Partition), {}) if broken else Partition
    finally:
        for module, name, _, shipped in patches:
            setattr(module, name, shipped)
