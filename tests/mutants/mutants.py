"""The rules that the shipped code follows, each broken in one place."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from edits import (
    Edit,
    Scope,
    Slot,
    always,
    binary,
    boolean,
    compare,
    drop,
    either,
    listed,
    move,
    never,
    put,
    restate,
    test,
    unwrap,
    value,
    without,
)


class Mutant:
    """
    One broken rule.

    Args:
        name: the fault that it makes.
        steps: the qualified name of a function, or of a global that is assigned to, and what is edited there. Where
            several have that name, the module comes first. Another place and its edits may follow.
    """

    def __init__(self, name: str, *steps: str | Edit) -> None:
        self.name, self._steps = name, steps

    def broken(self, app: Path) -> dict[Path, str]:
        """
        Return the files of the package at *app* that change, with their new text.

        Raises:
            ValueError: a place or an edit does not fit the code any more.
        """
        places: list[tuple[Path, Scope, list[str]]] = []
        try:
            for step in self._steps:
                if isinstance(step, str):
                    path, name = _found(app, step)
                    module = ast.parse(path.read_text())
                    scope = Scope(dict(_places(Slot(module, module, "", None)))[name], module)
                    places.append((path, scope, scope.text()))
                else:
                    step(places[-1][1])
            lines: dict[Path, list[str]] = {}
            # From the end of a file on, so that the line numbers of those before hold.
            for path, scope, before in sorted(places, key=lambda place: place[1].lines.start, reverse=True):
                if (after := scope.text()) == before:
                    raise ValueError("nothing changes")
                text = lines.setdefault(path, path.read_text().splitlines())
                text[scope.lines] = after
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}: write it anew") from error
        return {path: "\n".join(each) + "\n" for path, each in lines.items()}


def _places(within: Slot, name: str = "") -> Iterator[tuple[str, Slot]]:
    """Yield all functions and assignments to globals below a module or class, with their qualified names."""
    for slot in within.children():
        node = slot.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield name + node.name, slot
            yield from _places(slot, f"{name}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not name:
            yield node.targets[0].id, slot


@cache
def _index(app: Path) -> dict[str, list[tuple[Path, str]]]:
    """Return for each last part of a qualified name the modules that have it, and the whole name."""
    index = defaultdict(list)
    for path in sorted(app.rglob("*.py")):
        module = ast.parse(path.read_text())
        for name, _ in _places(Slot(module, module, "", None)):
            index[name.rsplit(".", 1)[-1]].append((path, name))
    return index


def _found(app: Path, place: str) -> tuple[Path, str]:
    """Return the module that has *place*, and the name that it has there."""
    found = []
    for path, name in _index(app)[place.rsplit(".", 1)[-1]]:
        whole = ".".join((*path.relative_to(app).with_suffix("").parts, name))
        if f".{whole}".endswith(f".{place}"):
            found.append((path, name))
    if len(found) != 1:
        raise ValueError(f"{len(found)} functions or globals are called {place}")
    return found[0]


MUTANTS = [
    # --- those that the first version's tests did not see ------------------------------------------------------------
    Mutant(
        "seals are read before the owner before is shut out",
        "Owner._take_over",
        drop("check"),
        move("_tail", before="_fence"),
        put("await self._ports.seals.tail(self.number, None)", "_tail"),
    ),
    Mutant("a seal takes no answers along", "Firing._send", put("()", "unsent", "1/2")),
    Mutant("answers are dropped at a takeover", "Owner._start", drop("add")),
    Mutant("prebuilt callbacks keep what was cancelled", "Firing.on_read", drop("withdrawn")),
    Mutant("rows that came later are not fired", "Firing._next_slice", listed("(_0, iter(()), _2, _3)", "behind")),
    Mutant("a hand-over leaves the store open", "Owner._release", drop("close")),
    Mutant(
        "an error of the epoch check is raised into the firing code",
        *("Outbox._fail", put("_0", "of")),
        *("Outbox._moves", put("_0", "FaultError")),
    ),
    Mutant("the position moves before the write", "Follower.write", move("apply", before="write")),
    Mutant("a batch is fed twice", "Follower.ingest", never("1/8"), never("offset", "1/2")),
    Mutant("a copy counts twice in find", "_History._read", never("copy")),
    Mutant("what is ready hears of no rows that come later", "Firing.on_read", drop("added")),
    Mutant(
        "an answer that came after the question for the owner is taken for confirmed",
        "Outbox.run",
        restate(
            "await self._hand_over([*_0, *[Letter.of(each, self._number) for each in self._waiting]])\n"
            "self._waiting.clear()",
            "_hand_over",
        ),
    ),
    Mutant(
        "the snapshot of a seal is what was read when it was sent", "Partition.sealed", put("self.position", "snapshot")
    ),
    Mutant("the log is read from below its begin", "Follower.open", put("_0", "max", "2/2")),
    Mutant(
        "a far request is withdrawn after its due",
        "Partition.effect",
        compare("_0 >= _1 and not _p1.far", "due_ms", "1/2"),
    ),
    Mutant(
        "all partitions have the end of the first that asked",
        "Firing.up_to",
        put("self._ports.clock.elapsed_s()", "asked_s"),
    ),
    Mutant("ids are forgotten by what is sealed alone", "forgets_ms", put("_0", "min")),
    Mutant("append times never step back", "forgets_ms", binary("_0", "SLACK_MS")),
    Mutant("the end of committed records proves that all was read", "LogBounds.watermark", put("True", "is_committed")),
    # --- owner and firing --------------------------------------------------------------------------------------------
    Mutant("a scan begins before the log is read up to the tick", "Firing.up_to", drop("ends", "2/2")),
    Mutant("the seal is made before the last callbacks are sent", "Firing._send", value("_0", "rest")),
    Mutant(
        "rows are dropped before the seal is committed",
        "Firing._send",
        restate("if _2: self._follower.store.write(self._partition.sealed(_1, _0.contents, _2))\n_", "_Sent"),
    ),
    Mutant("what was held back is forgotten", "Firing._drop", drop("release_held")),
    Mutant("a slice is taken for the whole scan", "Firing._send", either("_1", "behind")),
    Mutant(
        "withdrawn requests are not counted in the seal", "Firing._send", put("0", "cancelled"), put("0", "superseded")
    ),
    Mutant("an open scan of before is left", "Firing._has_to_seal", without("scan")),
    Mutant("a partition serves before it has read the log", "Owner._take_over", drop("reach")),
    Mutant(
        "after a fence the partition is taken over at once",
        "_Reaction.pause_s",
        restate("if not self.pauses_s: return 0.0", "pauses_s", "1/2"),
    ),
    Mutant("a copy that asks for older records is not heard", "Owner._reckon_with", drop("_read_from")),
    Mutant("the same answers are sent though a seal covers them", "Owner._start", always("is_answered")),
    Mutant("answers of before are sent as they are", "Owner._start", put("_0", "true_by_now")),
    Mutant("a store that is locked is tried for ever", "Owner._reckon_with", drop("give_up")),
    # --- outbox ------------------------------------------------------------------------------------------------------
    Mutant("nobody is asked before something is said to be cancelled", "Outbox.run", never("_NEED_AN_OWNER")),
    Mutant("a seal does not wait for answers", "Outbox.unsent", never("_oldest_s")),
    Mutant("a seal takes more answers along than it has room for", "Outbox.unsent", never("size")),
    Mutant(
        "answers that fail are lost",
        "Outbox._send_to",
        put("[each.clear() for each in self._unsent.values()]", "sleep"),
    ),
    Mutant("answers that find no room are given up at once", "Outbox._hand_over", never("_has_left")),
    Mutant(
        "an owner that was shut out goes on with the seals that compaction has left", "Owner._tail", never("is_held")
    ),
    Mutant("what the owner before has left is not sent", "Owner._start", drop("add_letters")),
    # --- brokers that are silent -------------------------------------------------------------------------------------
    Mutant("a leader is waited for though another one leads", "Producer._send", put("None", "has_moved")),
    Mutant("what a leader has lost is taken for read", "Follower.ready", never("read_up_to")),
    Mutant(
        "a takeover does not wait for the store that has what the log lacks", "Follower.open", never("may_wait_below")
    ),
    Mutant("a takeover goes on with a log that was cut", "OwnLog.check", put("_1", "min", "1/2")),
    Mutant("a log whose seals are gone fires again", "Owner._fire", drop("check_seals")),
    Mutant("an end is waited for though another broker leads", "LogBounds.told_by", value("None", "has_lost")),
    Mutant(
        "a coordinator is waited for though another one coordinates", "CoordinatorLink.ask", put("None", "has_moved")
    ),
    Mutant("a producer takes its own later epoch for somebody else's", "CoordinatorLink.refuse", never("_is_repeated")),
    Mutant(
        "a later epoch is asked for so that the next coordinator does not know for whom it is",
        "Coordinator.is_held",
        never("joins_by_writing"),
    ),
    # --- leaders of partitions ---------------------------------------------------------------------------------------
    Mutant("a takeover writes no barrier", "Owner._take_over", put("Barrier(None, None)", "barrier")),
    Mutant("a barrier that lies nobody knows where is one", "Producer.barrier", never("min")),
    Mutant("the barrier is left in an open transaction", "Producer.barrier", put("await _self.commit()", "abort")),
    Mutant("an end is believed of a leader without the barrier", "bounds.LogBounds.end", always("epoch")),
    Mutant(
        "seals are believed of a leader without the barrier",
        "SealLog._end",
        put("await _self.end(_0)", "end"),
        always(),
    ),
    Mutant("a leader of an earlier epoch is believed", "Cluster.learn", test("_0", "epoch")),
    Mutant("whoever answers first is asked each time", "Cluster._ask_some", value("0", "_turn", "len")),
    Mutant("only the leader is asked where the log ends", "EndOffsets._ask", without("replicas")),
    Mutant("an end is proved though another one leads", "EndOffsets._heard", test("_0", "4/5")),
    Mutant("nothing proves an end while a broker is silent", "Firing.prove", always("_PROVED_FOR_S")),
    Mutant(
        "the reader stays with a leader that is none any more",
        "Fetcher.moved",
        put("await __import__('asyncio').Event().wait()", "moved"),
    ),
    # --- producer and coordinator ------------------------------------------------------------------------------------
    Mutant("what is sent again gets another number", "Producer._send", restate("_0.sequence += 1\n_", "_later")),
    Mutant(
        "a topic is taken for gone on the word of a leader that has not heard of it", "firing._UNHEARD_S", value("0.0")
    ),
    Mutant("a topic that is gone holds up the others of its second", "sender._MISSING_S", value("1.0")),
    Mutant(
        "a batch that the log has already counts as refused", "Producer._send", without("DUPLICATE_SEQUENCE_NUMBER")
    ),
    Mutant("numbers go on in the next epoch", "Producer._end", drop("clear")),
    Mutant("numbers go on in an epoch that was asked for", "Producer.is_held", drop("clear")),
    Mutant("a partition is taken to be in the next transaction too", "Producer._end", drop("values")),
    Mutant("it commits before all is taken", "Producer.commit", drop("flush")),
    Mutant("who was shut out tries again", "Producer._not_taken", put("()", "FENCED")),
    Mutant("the end of a transaction leaves the epoch as it was", "Coordinator.end", drop("_is_now")),
    Mutant("an owner is asked for while a slice is open", "KafkaSender.is_held", unwrap("_free")),
    Mutant("a coordinator that is none any more is asked for ever", "CoordinatorLink.ask", drop("node", None, "2/2")),
    # --- offsets of doors --------------------------------------------------------------------------------------------
    Mutant("whoever says that it coordinates is believed", "Producer.committed", drop("send_offsets")),
    Mutant("another broker than the one that gave the proof is believed", "Producer.committed", always("node")),
    Mutant("an offset that was not answered may count in the next transaction", "Producer._end", never("unanswered")),
    Mutant("a source is read anew where a leader has not what was read of it", "SourceLog._start_above", never()),
    Mutant("a source whose leader is silent is given up", "SourceLog._fetched", always("_DELAYS")),
    # --- follower ----------------------------------------------------------------------------------------------------
    Mutant("what comes while records are held back overtakes them", "Follower.ingest", never("_held")),
    Mutant("the position passes what is held back", "Follower.ingest", never("5/8")),
    Mutant("a store of another log is used", "Follower._check_log", never("must_read_to")),
    Mutant("a store that is ahead of the log is kept", "Follower.open", never("position", "1/2")),
    Mutant("a kept store is not reconciled", "Follower.open", drop("reconcile")),
    Mutant("a store that is not worth keeping is kept", "Follower.open", never("is_new")),
    # --- store -------------------------------------------------------------------------------------------------------
    Mutant("iterators outlive their store", "TimerStore.end_reading", drop("throw")),
    Mutant(
        "a range that is deleted begins with the first row that there ever was",
        "TimerStore._delete_below",
        test("_0", "_SINGLY_MAX"),
        put("_self.delete_range(_p2, _1, _2)", "delete_range"),
    ),
    Mutant("rows that come in front of what was deleted are not looked for", "TimerStore._may_have", drop("_least")),
    Mutant("marks of what has fired stay", "TimerStore.write", never("_has_marks", "1/2")),
    Mutant("removed rows stay", "TimerStore.write", drop("removed", "delete")),
    Mutant("the lowest row is not known anew after rows were dropped", "TimerStore.write", never("removed")),
    Mutant("an id is forgotten though it was asked for again", "TimerStore.forget", without("made_at")),
    Mutant("the id of a copy is forgotten with its original", "Version.made_at", put("self.offset", "at")),
    Mutant(
        "answers to what a seal does not cover leave the store with it",
        "Firing._drop",
        put("self._partition.position", "snapshot"),
    ),
    Mutant("answers that a seal covers stay", "TimerStore.write", never("answered_before")),
    Mutant("the open scan is not in the head", "pack_head", never("1/3")),
    # --- moments of a second -----------------------------------------------------------------------------------------
    Mutant("the log's end is not asked for at a moment with an id", "Firing.up_to", never("_names_any")),
    Mutant("a moment is opened that has not come", "Firing._end_ms", put("300", 1, "2/2")),
    Mutant("a moment behind the ticked second is opened", "Firing._end_ms", put("_0", "min")),
    Mutant("moments follow each other without a pause", "Firing.due_s", put("_0", "max")),
    Mutant("nobody looks at what was read since", "Owner._on_read", drop("rows")),
    Mutant("a store forgets within which moment it was sealed", "pack_head", put("_ // 1000 * 1000", "sealed_ms")),
    Mutant("ticks of another leader count", "TickClock.read", always("epoch")),
    Mutant("ticks of before a step of the clock count", "TickClock.read", always("_SLEW_MAX")),
    Mutant("a slewed clock is not taken for slower", "tick_clock._LATE_MS", value("9_999")),
    Mutant("the clock is not slowed", "tick_clock._DRIFT", value("0.0")),
    Mutant("milliseconds do not count", "Partition.effect", compare("_0 >= _p1.second * 1000", "due_ms", "1/2")),
    Mutant("what was sealed before another takeover is deleted", "Trimmer._settled", never("2/4")),
    Mutant("a log that was made anew is trimmed", "Trimmer.trim", without("is_other")),
    Mutant("what a lake has not landed is deleted", "Trimmer.trim", never("horizon_s")),
    Mutant("a cancelled id is known until an hour after its timer", "Version.is_over", without("since_ms")),
    Mutant("an owner that cannot tell counts the hour from the timer", "decisions._decide", never("since_ms")),
    Mutant("an id that was cancelled is remembered until its timer", "decisions._keep", never("7/9")),
    Mutant("what is left of the second before is not fired with what is ready", "Prebuilt.take", drop("_lowest")),
    # --- partition ---------------------------------------------------------------------------------------------------
    Mutant("what is read during a scan is put into it", "Partition.place", never("snapshot", "2/2")),
    Mutant("what a slice has fired is kept", "Partition.place", never("through")),
    Mutant("the snapshot does not count", "Partition.place", always("snapshot", "1/2")),
    Mutant(
        "a scan gets a new snapshot",
        "Partition.begin",
        boolean("(_0 and replace(_0, snapshot=self.head.position)) or _1", "Scan"),
    ),
    Mutant("a store that has read beyond the snapshot is kept", "_has_read_beyond", value("False", "position")),
    Mutant(
        "a scan with the same end and another snapshot is taken for one's own",
        "_has_read_beyond",
        compare("_0[0] == _1[0]", "end_ms"),
    ),
    Mutant("a slice on an older seal counts", "last_slice_of", without("first_ms")),
    Mutant("a store that ends below restore_from is kept", "start_of", never("position")),
    Mutant("restore_from forgets what waits", "Partition._lowest", either("_1", "done_below")),
    Mutant("what is in a scan is still cancelled", "Partition.effect", never("snapshot")),
    Mutant("what an unsealed scan may fire is decided at once", "Partition.effect", either("_1", "through")),
    Mutant("what nobody can tell any more is too late", "Partition.effect", never("is_answered")),
    Mutant(
        "a cancel counts until the end of the second",
        "Partition.effect",
        compare("_0 >= _p1.second * 1000 + 1000", "due_ms", "1/2"),
    ),
    Mutant("named requests are not remembered once they have fired", "Partition._tally_without", never("named")),
    Mutant("what was ignored is not sealed", "Partition.seal", drop("named_of")),
    # --- callbacks in a field of their own ---------------------------------------------------------------------------
    Mutant(
        "a callback on a partition that is not there goes to another",
        "Outgoing.at",
        value("self.partition % _p1", "partition"),
    ),
    Mutant("an empty key is none", "Outgoing.at", test("not self.hashed", "hashed")),
    Mutant("a tombstone has an empty value", "Outgoing.of", put("cls(_0, _1, _2 or b'', _3, _4)", "cls", "2/2")),
    Mutant(
        "a copy is the last of its id though a later request is known",
        "_decide_copy",
        compare("_0 < _1", "offset", "2/2"),
    ),
    # --- decisions ---------------------------------------------------------------------------------------------------
    Mutant("a repeated copy counts", "_decide_copy", never("name")),
    Mutant("a stale copy counts", "_decide_copy", never("COPY_STALE_S")),
    Mutant("an overtaken copy counts", "_decide_copy", never("latest")),
    Mutant("a copy is decided on without what it depends on", "_decide_copy", never("known_from")),
    Mutant("withdrawn requests are not remembered", "decisions._remember_withdrawn", drop("remember")),
    Mutant("an id is absent as soon as its timer has fired", "over_ms", binary("_0", "ID_MEMORY_MS")),
    Mutant("the version that a condition names does not matter", "_holds", compare("True", "expected", None)),
    Mutant("an ignored request stands when the log is read again", "_holds", never("ignored")),
    # --- requests sent on to the partition of their id ---------------------------------------------------------------
    Mutant("what is sent on goes to some partition", "Slice._forward", put("1", "hash_of")),
    Mutant("what is sent on is not sealed as that", "Slice._forward", drop("forwarded")),
    Mutant(
        "what is sent on leaves before the callbacks", "OpenBatches.rest", restate("_0[:0] = _1", "enumerate", "2/2")
    ),
    Mutant("what was sent on is sent on again", "verdicts.judged", without("forwarded")),
    Mutant("what is refused where it belongs is sent on", "verdicts.judged", without("isinstance")),
    Mutant("no cancel takes back what arrives later", "_is_taken_back", compare("False", "first_ms")),
    Mutant("a cancel takes back what was appended after it", "_is_taken_back", without("first_ms")),
    Mutant("a cancel that was sent on counts from its arrival", "_remember_cancel", never("first")),
    Mutant("a cancel under a condition takes back what arrives later", "decisions._decide", without("condition")),
    Mutant("an answer names the place where the record has arrived", "Answer.reply", without("first")),
    Mutant("an answer forgets where its record came from", "Answer.unpack", put("''", "decode")),
    # --- verdicts, rows, backlog, reconcile --------------------------------------------------------------------------
    Mutant("a copy with a negative offset is accepted", "_judged_in", compare("_1 < _2 <= _3", "decidedOffset")),
    Mutant("what an owner before has let stand is judged anew", "_holds", put("False", "has_stood")),
    Mutant("an ignored request is kept", "_place_request", without("ignored")),
    Mutant("what may be late is kept in batches", "_usual", without("min")),
    Mutant("a batch loses its ids when a part of it is withdrawn", "rows.without", put("False", "named")),
    Mutant("what moves into a batch does not take it apart", "reconcile", never("bisect")),
    Mutant("what was done elsewhere still counts as waiting", "reconcile", drop("chunks_of")),
    Mutant("what was cancelled here and done elsewhere is known as cancelled", "_reconcile_marks", drop("doubted")),
    Mutant("a chunk is forgotten with its last request", "Tally.remember", never("max")),
    # --- full disks --------------------------------------------------------------------------------------------------
    Mutant("a partition is taken over though its disk is full", "Owner._take_over", drop("check_room")),
    Mutant("a store is new though timer ids are known there", "TimerStore.is_new", without("_ids"), without("_side")),
    Mutant("a store that a full disk has stopped is kept", "REACTIONS", put("None", "make_room")),
    # --- disks that cannot be read -----------------------------------------------------------------------------------
    Mutant("a row that cannot be read is the last one", "_walked", drop("status")),
    # --- reading -----------------------------------------------------------------------------------------------------
    Mutant("partitions with a backlog starve the others of their broker", "LogReader._fetch", value("0", "_first")),
    Mutant(
        "a partition that its leader withholds keeps others from being read",
        "LogReader._follow",
        restate("_\nif _1: return await self._find_leaders()", "_tell_withheld"),
    ),
    Mutant("as much is asked for again as was not brought in time", "Fetcher._ask", binary("_0", 4)),
    Mutant(
        "a fetch session does not hear of later positions",
        "_Session.request",
        compare("_0 not in self._known", "get"),
        put("_0", "get"),
    ),
    Mutant(
        "a fetch session does not hear of partitions that are read no more", "_Session.request", binary("()", "keys")
    ),
    Mutant("a lost fetch session is not begun anew", "Fetcher.fetch", drop("restart", "2/2")),
    Mutant("a quota makes a partition unreadable", "Fetcher.fetch_one", put("_self[_0]", "get")),
    Mutant("an emptied marker stops the reader", "fetching._committed", put("next(_0)", "next")),
    Mutant(
        "ticks are read from a leader that was cut off for as long as it answers", "TickReader._watch", drop("refresh")
    ),
    Mutant(
        "who cannot tell where a log ends counts as not leading it",
        "EndOffsets._heard",
        compare("_0 is not None", "_FOLLOWS"),
    ),
    Mutant(
        "who waits for a leader asks without a pause",
        "LogBounds._from_leader",
        restate("if self._cluster.leader(self._topic, _p1):\n    _", "sleep"),
    ),
    Mutant("what has not been read in time is not shown", "Owner._overdue", put("0.0", "unread_s", "1/2")),
    Mutant("what is overdue leaves out what lies behind an open transaction", "oldest_due", put("0.0", "max", "1/2")),
    Mutant("a tick of thousands of digits is read as a number", "number_in", without("len")),
    # --- questions to brokers ----------------------------------------------------------------------------------------
    Mutant("a broker that does not answer keeps its connection", "Cluster._ask", drop("_drop", "1/3")),
    Mutant("no other broker is asked while one is silent", "Cluster._ask_some", put("None", "timeout")),
    Mutant(
        "where there is nothing to log in with the brokers are to blame",
        "Cluster._ask_some",
        boolean("_1", "KafkaConnectionError"),
    ),
    Mutant("a topic is missing as soon as one broker does not know it", "TopicLookup._settings", put("()", "ask_two")),
    Mutant("a topic has no partitions as soon as one broker does not know it", "topics.standing", put("()", "ask_two")),
    Mutant("a topic that was made is known as soon as one broker knows it", "_until_known", put("any(_0)", "all")),
    Mutant("numbers of records have no end", "Producer._taken", binary("_0", 0x7FFF_FFFF)),
    # --- topics that refuse ------------------------------------------------------------------------------------------
    Mutant("slices that are too slow stay as large", "SliceSize.shrink", put("self.bytes", "max", "2/2")),
    Mutant("a slice has no bound in bytes", "Slice.is_full", without("bytes")),
    Mutant("a topic is refused when it refuses for the first time", "Firing._send_and_commit", test("_1")),
    Mutant("a callback without a key goes to a compacted topic", "accumulators.place_in", never("needs_key")),
    Mutant(
        "replicas that are missing are a topic's refusal", "codes.DELAYS_OF_LEADERS", without("NOT_ENOUGH_REPLICAS")
    ),
    Mutant("a requester speaks for the service", "wire.callback_headers", compare("_0", "SERVICE_HEADERS")),
    # --- instances, and their status ---------------------------------------------------------------------------------
    Mutant(
        "instances have transactional ids in common",
        "sender.transactional_ids",
        put("instance_name('')", "instance_name"),
    ),
    Mutant(
        "an owner's second producer is shut out by its first use",
        *("KafkaSender.start", put("[0]", "_usable", "1/3")),
        "KafkaSender.begin",
        restate("_\nif self._producer.coordinator.identity[0] < 0: await self._producer.start()", "acquire"),
    ),
    Mutant("an id whose transaction cannot end is used again", "KafkaSender.abort", never("_transactional")),
    Mutant("an owner passes over an id that no seal has retired", "KafkaSender.agree", never("retired")),
    Mutant("a seal does not name the ids that are retired", "Firing._send", put("[]", "retired", "2/2")),
    Mutant("an id that was fenced late is never used again", "KafkaSender.commit", drop("_usable", "1/2")),
    Mutant("a partition that lacks replicas is waited for without end", "Producer._lasts", never("_gives_up_on")),
    Mutant(
        "the time without a leader counts as time without replicas", "codes.reason_of", without("NOT_ENOUGH_REPLICAS")
    ),
    Mutant(
        "a partition that lacks replicas is given up at once",
        "TopicLookup._aged",
        compare("False", "UNAVAILABLE_AFTER_S"),
    ),
    Mutant("a partition is well as soon as a broker says so", "TopicLookup.set_aside", put("{}", "fromkeys")),
    Mutant("what was built for a topic that is unavailable by now leaves", "TopicGate.is_outdated", without("open")),
    Mutant("what is set aside is not asked for again", "Slice._add_any", put("b''", "_ask_again")),
    Mutant("what was set aside takes the place of a later request", "instead_of", never("timerId")),
    Mutant("what was set aside is asked for without end", "instead_of", never("_GIVES_UP_MS")),
    Mutant("doors have transactional ids in common", "outlet.transactional_id", put("'.'", "/", "1/2")),
    Mutant("partitions that were added are served", "served_partitions", boolean("0", "2/4")),
    Mutant("a partition that stands still is not told of", "health._partitions", never("LIMIT_S", "2/2")),
    # --- prebuilt callbacks ------------------------------------------------------------------------------------------
    Mutant("a prebuilt slice is used however much comes first", "Prebuilt.take", never("_BEFORE_MAX")),
    Mutant("what is withdrawn while it is built is fired", "Prebuilt.withdrawn", never("_is_building")),
    # --- requests through a door -------------------------------------------------------------------------------------
    Mutant("what is built one by one is missing in the history", "Slice._add_or_judge", drop("_record")),
    Mutant("what the history does not take is counted nowhere", "Slice._record", drop("unrecorded")),
    Mutant("a door's request is rejected as it is", "as_written", always("SOURCE_TAG")),
    Mutant("what was told of a record before is taken for what is told now", "rejecting.fitted", drop("REJECT_PREFIX")),
    Mutant("a door's request that is gone is asked for empty", "Rejected._why_not", never("made", "future")),
    # --- counts of read records in seals -----------------------------------------------------------------------------
    Mutant("what is read again after a takeover is counted twice", "ReadSums.read_on", never("offset", "1/3")),
    Mutant("what is known up to the fence is counted once more", "ReadSums.read_on", never("to", "1/3")),
    Mutant(
        "a store that has read further is not asked what it has counted",
        "_read_before",
        compare("_0 < _1", "to", "1/2"),
    ),
    Mutant("an owner goes on from sums that end below where it reads on", "_read_before", without("to", "2/2")),
    Mutant("a slice tells what was read behind its fence", "Partition.seal", put("self.head.read or _", "read", "2/2")),
    Mutant("what is not decided yet is counted as read", "Follower.ingest", put("None", "count", "2/2")),
    Mutant("a store does not keep what it has counted", "pack_head", compare("False", "to")),
    Mutant("a cancel is counted among the near too", "ReadSums.read_on", put("_self", "minus", "1/2")),
    Mutant("a seal names the one before the last", "Firing._commit", drop("_previous")),
    Mutant("an owner does not name the seal of the one before", "Owner._start", put("b''", "last")),
    Mutant("a seal names no batches", "Firing._send", drop("tell")),
    Mutant("a seal names batches in the order of sending", "OpenBatches.tell", drop("sort")),
    Mutant("a seal names no full batch", "OpenBatches.append_to_new", never("_own")),
    Mutant("a seal names rejects", "OpenBatches.append_to_new", always("_own")),
    Mutant("a seal names any number of batches", "accumulators._BATCHES_MAX", value("1_000_000")),
    Mutant("a batch that was built early is sent for nobody", "Batch.encoded", without("_PRODUCER_AT")),
    Mutant("a callback is dated when it was built", "OpenBatches._dated", drop("leave")),
    # --- recurring timers --------------------------------------------------------------------------------------------
    Mutant("a run that is replaced is asked for as if it were not known", "_extend.ask", either("_2", "IF_ABSENT")),
    Mutant(
        "a run is asked for without a condition",
        "_extend.ask",
        either("Condition.CONDITION_UNSPECIFIED", "IF_ABSENT"),
    ),
    Mutant("a dropped run is not cancelled", "Plans._cancel", never("EDGE_MS")),
    Mutant("a dropped run is cancelled at once", "Plans._cancel", compare("_0 < _1", "EDGE_MS")),
    Mutant("a change reaches runs that are due at once", "Plans._replan", binary("_0", "EDGE_MS")),
    Mutant("runs of a schedule that is gone go on", "Plans.loaded", never("_schedule_in")),
    Mutant("a paused schedule runs", "Plans._replan", without("paused")),
    Mutant("a record of a clock ahead counts from its time", "Plans._replan", put("_0", "min")),
    Mutant("what was cancelled comes back", "Plans._cancel", never("next_ms")),
    Mutant("a change does not reach a run whose instant is over", "_extend", never("cancelled_ms")),
    Mutant("a plan of a record behind the end is of a deleted schedule", "Plans.loaded", compare("True", "schedule")),
    Mutant("a missed run is due in its own second", "_extend.ask", never("_MISSED_MS")),
    Mutant("a schedule goes on after its last run", "_extend.is_over", compare("False", "runs")),
    Mutant("a change does not take runs back from their count", "planned_runs.drop", drop("runs")),
    Mutant(
        "a planner begins anew with each schedule when it takes over",
        "Plans._is_by",
        compare("_0 == -1", "schedule"),
    ),
    Mutant("a schedule is known by its offset alone", "Plans._is_by", compare("_0 == _0", "digest")),
    # --- recurring timers: what is held back --------------------------------------------------------------------------
    Mutant("a change loses runs with an instant near by", "planning._extend", put("()", "between")),
    Mutant("a hold is forgotten at once", "Plans._hold", put("None", "_holds", "1/2")),
    Mutant("a hold that was taken back stays", "Plans._hold", drop("pop")),
    Mutant("a hold counts with the next change alone", "Plans._hold", drop("_take")),
    Mutant("a hold is no part of what was planned by", "planning.digest_of", binary("_0", b"")),
    Mutant("a run that is skipped fires", "Timetable.next_after", never("_skipped_ms")),
    Mutant("a day without runs has some", "Timetable.next_after", put("None", "end_of")),
    Mutant("a change undoes what another client has changed meanwhile", "Schedules._edit", put("None", "get", "2/2")),
    Mutant("runs that are asked for and not due are not counted as left", "schedules.next_runs", binary("_0", "len")),
    Mutant("a run of the gap is left out", "CronTimes._next_after", never("_jumps")),
    # --- recurring timers: plans that come and go ---------------------------------------------------------------------
    Mutant("a schedule that is put and deleted at once runs", "Plans._take", drop("pop", "1/2")),
    Mutant("an earlier record takes the place of what was planned", "Plans._take", drop("pop", "2/2")),
    Mutant("a change that nobody has planned is a deletion", "Plans.loaded", without("_changed")),
    Mutant("new time zones move nothing", "Plans.zones_changed", never("cron")),
    Mutant("new time zones bring an earlier record back", "Plans.zones_changed", without("_changed")),
    Mutant("a change leaves the runs of before", "Plans._replan", drop("drop")),
    Mutant("a schedule begins before its record", "Plans._replan", value("0", "appended_ms", "1/2")),
    Mutant("a plan does not name its record", "Plans._replan", drop("schedule", "offset")),
    Mutant("any key is the id of a schedule", "schedules.check_record", never("is_text")),
    Mutant("a schedule may be larger than the request of its runs", "schedules.check_record", never("_RUN_BYTES")),
    Mutant("what is no schedule is not told of", "Plans._times", drop("refused")),
    Mutant("a run that was dropped and has fired does not count", "Plans._cancel", drop("runs", "cancelled_ms")),
    Mutant("a run that was cancelled counts", "Plans._cancel", compare("True", "cancelled_ms", "1/2")),
    Mutant("a planner's transaction begins with a second", "Turns.may_begin", never("_BEFORE_S")),
    Mutant("a worker that always fires stops all planning", "Turns.over", drop("_STRIDES_UNASKED")),
    Mutant("planning does not wait for what is fired", "Turns.over", never("idle_soon")),
    Mutant("planning goes on without a pause", "Turns.spread", never("STRIDE_RECORDS")),
    # --- outbox: room, lanes and faults -------------------------------------------------------------------------------
    Mutant("answers that wait take no room", "Outbox.add_letters", drop("_unsent_bytes", "size")),
    Mutant("answers for another topic are not sent", "Outbox.add_letters", never("_is_running")),
    Mutant("answers may take all memory", "Outbox.add_letters", never("_KEPT_BYTES_MAX")),
    Mutant("answers that wait when it starts are not sent", "Outbox.run", drop("_open_lane")),
    Mutant("room of answers that were sent is not given back", "Outbox._send_to", restate("_1", "popleft")),
    Mutant("answers that came while others were sent are lost", "Outbox._send_to", compare("True", "number")),
    Mutant("an answer that came after the last look is lost", "Outbox._sent_to", never("_unsent")),
    Mutant("a fault while answers are sent is told to nobody", "Outbox._sent_to", drop("_fail")),
    Mutant("the newest topic's answers are given up", "Outbox._give_up", put("max(_0)", "min")),
    Mutant("answers that were given up are not counted", "Outbox._give_up", drop("inc")),
    Mutant("a seal does not wait until the owner is confirmed", "Outbox.confirmed", never("_confirmed")),
    Mutant("a seal waits as long as answers leave one by one", "Outbox._has_left", put("_0", "min")),
    Mutant("after a seal answers find no room at once", "Outbox.confirmed", drop("inf")),
    Mutant(
        "a seal takes answers along by topic",
        "Outbox.unsent",
        put("__import__('itertools').chain(*self._unsent.values())", "merge"),
    ),
    # --- prebuilt callbacks: budget and ranges ------------------------------------------------------------------------
    Mutant("what is ready takes nothing of the budget", "Prebuilt.more", drop("bytes", "_bytes_before", "2/2")),
    Mutant("a second is made ready beyond the budget", "Prebuilt.more", without("_budget")),
    Mutant("a slice without callbacks is ready", "Prebuilt.more", never("len")),
    Mutant("a slice that is ready has any size", "Prebuilt.more", without("is_full")),
    Mutant("a lower row that came later is not noticed", "Prebuilt.added", put("_0", "min")),
    Mutant("what is withdrawn elsewhere spoils what is ready", "Prebuilt.withdrawn", never("start")),
    Mutant("a second with a withdrawn request is not made ready anew", "Prebuilt.withdrawn", drop("is_spoilt")),
    Mutant("what is withdrawn stays in a slice that is ready", "Prebuilt.withdrawn", never("behind")),
    Mutant("more is made ready of rows that were withdrawn", "Prebuilt.withdrawn", drop("iter")),
    Mutant("a slice that is dropped half built keeps its budget", "Prebuilt.withdrawn", drop("_bytes_before")),
    Mutant("a slice of before the scan is used", "Prebuilt.take", without("start")),
    Mutant("a slice of behind the scan is used", "Prebuilt.take", without("end")),
    Mutant("a slice that is used keeps its budget", "Prebuilt.take", drop("_budget")),
    Mutant("the next slice begins where the one before did", "Prebuilt.take", drop("start", "behind")),
    Mutant("rows that came later are not looked for", "Prebuilt.missed", always("_lowest")),
    Mutant("what is ready is fired once more from the store", "Prebuilt.missed", always("holds_any")),
    Mutant("what is dropped keeps its budget", "Prebuilt.release", restate("_1", "_budget")),
    Mutant("what a rejection was built for is not judged anew", "PrebuiltSeconds.next_slice", without("is_outdated")),
    Mutant("with one second all are dropped", "PrebuiltSeconds._drop", compare("True", "start")),
    # --- follower: what a store knows ---------------------------------------------------------------------------------
    Mutant("a kept store does not know how much waits", "Follower.open", drop("restore")),
    Mutant("what is held back is taken in twice", "Follower.read_up_to", either("_2", "_held")),
    Mutant("a store does not know under which leader it was read", "Follower.ready", drop("led")),
    Mutant("a store is fed faster than its disk takes it", "Follower.ready", never("is_behind")),
    Mutant("the owner does not hear what was read", "Follower.ingest", drop("_on_read")),
    # --- ends of the log ----------------------------------------------------------------------------------------------
    Mutant("all ticks have the ends of the first", "EndOffsets.end", boolean("_0", "second")),
    Mutant("a partition that is given up takes the question from the others", "EndOffsets.end", put("_0", "shield")),
    Mutant("a partition whose leader is silent has no requests", "EndOffsets.end", either("0", "_bounds")),
    Mutant("a late answer takes a proof back", "EndOffsets.proved", put("_0", "max")),
    Mutant("an end of an earlier leader counts", "EndOffsets._heard", compare("True", "epoch")),
    Mutant("a follower that says so leaves the end unproved", "EndOffsets._heard", without("_FOLLOWS")),
    Mutant("a leader that does not know its end yet proves another", "EndOffsets._heard", value("True", "_FOLLOWS")),
    Mutant("a proof counts from its last answer", "EndOffsets._heard", put("self._clock.elapsed_s()", "began_s")),
    Mutant("questions go on when nobody waits for them", "EndOffsets.close", drop("cancel")),
    # --- logs without ids ---------------------------------------------------------------------------------------------
    Mutant("any log is the one of a mark", "TopicLog.is_other", compare("False", "mark")),
    Mutant("retention makes it another log", "TopicLog.is_other", listed("(_1,)", b"")),
    Mutant("a store of another log is believed", "Follower.open", never("_is_other")),
    Mutant("a log without id has no mark", "Owner._open", without("mark")),
    # --- the planner of a process -------------------------------------------------------------------------------------
    Mutant("a planner goes by what a tick says", "SchedulePlanner._on_tick", put("_0", "tick_second")),
    Mutant("a planner goes back with a broker's clock", "SchedulePlanner._on_tick", always("_seconds")),
    Mutant("no tick wakes a planner", "SchedulePlanner._on_tick", drop("set")),
    Mutant("a planner dates records before the first tick", "SchedulePlanner._serve", drop("wait")),
    Mutant(
        "a planner goes by ticks of before it had a partition", "SchedulePlanner._serve", drop("_seconds", "pop", "1/2")
    ),
    Mutant(
        "a partition that always fails is never behind",
        "SchedulePlanner._serve",
        restate("_\nself._planned_s[_p2.partition] = self._clock.elapsed_s()", "_failed"),
    ),
    Mutant("a partition that another planner has is behind", "SchedulePlanner._serve", drop("_planned_s", "pop")),
    Mutant("a planner that always fails is never behind", "SchedulePlanner.run", always("_failing_s")),
    Mutant("a spare planner is behind once it gets a partition", "SchedulePlanner.run", without("_is_idle")),
    Mutant("a spare planner is behind", "SchedulePlanner._behind_s", without("_is_idle")),
    Mutant(
        "the partition that was planned last counts",
        "SchedulePlanner._behind_s",
        put("max(_0, default=self._clock.elapsed_s())", "min"),
    ),
    Mutant("a fault of a partition is told for ever", "SchedulePlanner._on_planned", drop("_troubles")),
    Mutant("a planner that plans again is still behind", "SchedulePlanner._on_planned", drop("_failing_s")),
    Mutant("missing topics are told each time", "SchedulePlanner._run", always("_trouble")),
    Mutant(
        "missing topics are looked for without a pause", "SchedulePlanner._run", put("_RETRY_S", "_MISSING_RETRY_S")
    ),
    # --- brief seals --------------------------------------------------------------------------------------------------
    Mutant("compaction may take the seal that a brief one builds on", "key_of_seal", either("b''", "is_brief")),
    Mutant("seals are read back to any complete one", "SealLog._tail", always("is_brief")),
    Mutant("a brief seal stays as it is", "SealLog._read", put("_0", "filled")),
    Mutant("a brief seal builds on one of another second", "brief.shortened", without("last_second_of")),
    Mutant(
        "a brief seal says what the one before it has said, whatever holds", "brief.shortened", either("_2", "_said_by")
    ),
    # --- sweeps -------------------------------------------------------------------------------------------------------
    Mutant("a sweep is told of before it is read back", "Sweeping.go_on", without("position")),
    Mutant("a sweep is told of before what it leaves out has fired", "Sweeping.go_on", without("sealed_ms")),
    Mutant("a store that is read anew takes nothing from sweeps", "Follower.take", drop("write")),
    Mutant("a store that lacks some of a sweep is kept", "start_of", without("lacks_swept")),
    Mutant("a store never has all of a sweep", "Follower.has_taken", drop("write")),
    Mutant("the sweep before the last one is not told of", "sweep.tell", compare("False", "restore_from")),
    Mutant("what waits counts where it was repeated before", "Tally.sweep", drop("add")),
    Mutant("what is repeated counts where it was", "Tally.counts_in", either("_2", "_below")),
    Mutant("a sweep begins within the one before", "Partition.sweep", never("since")),
    Mutant("a sweep begins before the one before it is told of", "Partition.sweep", without("swept")),
    Mutant("a sweep leaves out what is late", "Partition.sweep", put("self.sealed_ms", "scanned_ms")),
    Mutant("far requests are swept", "Partition.sweep", without("horizon_s")),
    Mutant("a request is repeated with its condition", "sweep.unconditional", always("condition")),
    Mutant("requests of another sweep are taken", "repeated_in", compare("True", "begun")),
    Mutant("a request is taken from a sweep, and read", "changes.to_take", put("_0", "min")),
]

# Survivors, and why nothing is wrong with that.
EXPLAINED: dict[str, str] = {}
