"""The places at which the shipped code is broken, one at a time."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """
    One broken rule.

    Attributes:
        name: the fault that it makes.
        file: below app/kafka_timers.
        edits: each text that stands there once, and the text in its place.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]

    def broken(self, text: str) -> str:
        """
        Return *text*, that of the file, with the edits.

        Raises:
            ValueError: a text does not stand there once.
        """
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {self.file} has {text.count(old)} times {old!r}: write it anew")
            text = text.replace(old, new)
        return text


def _one(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, file, ((old, new),))


OWNER, FIRING, FOLLOWER = "worker/owner.py", "worker/firing.py", "worker/follower.py"
STORE, STORE_HEAD, SUMS = "worker/store.py", "worker/store_head.py", "core/sums.py"
OUTBOX, ENDS = "worker/outbox.py", "worker/end_offsets.py"
PARTITION, DECISIONS, VERDICTS = "core/partition.py", "core/decisions.py", "core/verdicts.py"
ACCEPTING = "core/accepting.py"
JUDGING, CALLBACKS = "core/judging.py", "core/callbacks.py"
RECONCILE, BACKLOG, ROWS = "core/reconcile.py", "core/backlog.py", "core/rows.py"
PRODUCER, COORDINATOR, SENDER = "broker/producer.py", "broker/coordinator.py", "worker/sender.py"
ASKING, SOURCE, TICK_CLOCK = "broker/asking.py", "adapters/source.py", "core/tick_clock.py"
READER, SLICES, SENT = "worker/reader.py", "worker/slices.py", "worker/sent.py"
CLUSTER, BOUNDS, SEALS, FETCHING = "broker/cluster.py", "broker/bounds.py", "broker/seals.py", "broker/fetching.py"
OUTCOMES, PREBUILD, TAKEOVER = "core/outcomes.py", "worker/prebuild.py", "core/takeover.py"
PLANNING, CALENDAR, BATCHES = "core/planning.py", "core/calendar.py", "broker/batches.py"

MUTANTS = [
    # --- those that the first version's tests did not see ------------------------------------------------------------
    Mutant(
        "seals are read before the owner before is shut out",
        OWNER,
        (
            (
                "        fenced = await self._fence()\n"
                "        await self._check_log()\n"
                "        barred = await self._bar(fenced)\n"
                "        tail = await self._tail(fenced, barred)\n",
                "        tail = await self._ports.seals.tail(self.number, None)\n"
                "        fenced = await self._fence()\n        barred = await self._bar(fenced)\n",
            ),
        ),
    ),
    _one("a seal takes no answers along", FIRING, "for letter in await self._outbox.unsent():", "for letter in ():"),
    _one(
        "answers are dropped at a takeover",
        OWNER,
        "        outbox.add([true_by_now(answer, partition) for answer in left])\n",
        "",
    ),
    _one(
        "prebuilt callbacks keep what was cancelled",
        FIRING,
        "            self._prebuilt.withdrawn(key)\n",
        "            pass\n",
    ),
    _one(
        "rows that came later are not fired",
        FIRING,
        "        return built, missed, store.rows(behind(built), scan.end), is_last\n",
        "        return built, iter(()), store.rows(behind(built), scan.end), is_last\n",
    ),
    Mutant(
        "the store is not closed when a hand-over is cut short",
        OWNER,
        (
            (
                "            await self._follower.close()\n"
                "            if drop_store:\n"
                "                drop_store(self.number)\n"
                "            await cancel(chores)\n",
                "            await cancel(chores)\n            await self._follower.close()\n",
            ),
        ),
    ),
    Mutant(
        "an error of the epoch check is raised into the firing code",
        OUTBOX,
        (
            ("        self._fault = Fault.of(error)\n", "        self._fault = error\n"),
            ("            raise FaultError(self._fault)\n", "            raise self._fault\n"),
        ),
    ),
    _one(
        "the position moves before the write",
        FOLLOWER,
        "        self.store.write(changes)\n        self.partition.apply(changes)\n",
        "        self.partition.apply(changes)\n        self.store.write(changes)\n",
    ),
    Mutant(
        "a batch is fed twice",
        FOLLOWER,
        (
            ("        if position <= read_up_to:\n            return\n", ""),
            ("        if records and records[0].offset < read_up_to:\n", "        if False:\n"),
        ),
    ),
    _one(
        "a copy counts twice in find",
        OUTCOMES,
        '        if future.HasField("copy"):\n            self._came_back(outcome, future, accepted)\n        else:\n',
        "        if True:\n",
    ),
    # --- owner and firing --------------------------------------------------------------------------------------------
    _one(
        "a scan begins before the log is read up to the tick",
        FIRING,
        "            await self._read_up_to(await ports.ends.end(self._number, second))\n",
        "",
    ),
    _one(
        "the seal is made before the last callbacks are sent",
        FIRING,
        "        sender.send_all(slice_.rest())\n",
        "        slice_.rest()\n",
    ),
    _one(
        "rows are dropped before the seal is committed",
        FIRING,
        "        await self._sender.commit(sent.seal, on_taken)\n",
        "        if sent.drop_before:\n            self._follower.store.write(self._partition.sealed(sent.seal, "
        "sent.slice.contents, sent.drop_before))\n        await self._sender.commit(sent.seal, on_taken)\n",
    ),
    _one("what was held back is forgotten", FIRING, "        self._follower.release_held()\n", "        pass\n"),
    _one(
        "a slice is taken for the whole scan",
        FIRING,
        "        drop_before = scan.end if ended else behind(slice_)\n",
        "        drop_before = scan.end\n",
    ),
    _one(
        "withdrawn requests are not counted in the seal",
        FIRING,
        "cancelled=cancelled, superseded=superseded)",
        "cancelled=0, superseded=0)",
    ),
    _one(
        "an open scan of before is left",
        FIRING,
        "            partition.scan is not None\n            or partition.has_to_tell\n",
        "            partition.has_to_tell\n",
    ),
    _one(
        "a partition serves before it has read the log",
        OWNER,
        "        await self._follower.reach(max(end, self._partition.must_read_to), unless=self._stopped.is_set)\n",
        "",
    ),
    _one(
        "after a fence the partition is taken over at once",
        OWNER,
        "            return ports.settings.session_timeout_s\n",
        "            return 0.0\n",
    ),
    _one(
        "a copy that asks for older records is not heard", OWNER, "            self._read_from = fault.read_from\n", ""
    ),
    _one(
        "the same answers are sent though a seal covers them",
        OWNER,
        " if not partition.is_answered(answer.offset)]",
        "]",
    ),
    _one(
        "answers of before are sent as they are",
        OWNER,
        "true_by_now(answer, partition) for answer",
        "answer for answer",
    ),
    _one("a store that is locked is tried for ever", OWNER, "            ports.give_up(\n", "            str(\n"),
    # --- outbox ------------------------------------------------------------------------------------------------------
    _one(
        "nobody is asked before something is said to be cancelled",
        OUTBOX,
        "if any(answer.outcome in _NEED_AN_OWNER for answer in answers) and not await self._is_held():\n",
        "if False:\n",
    ),
    _one(
        "a seal does not wait for answers",
        OUTBOX,
        "            while (oldest_s := self._oldest_s()) is not None and oldest_s <= before_s:\n",
        "            while False:\n",
    ),
    _one(
        "a seal takes more answers along than it has room for",
        OUTBOX,
        "            if (room := room - each.letter.size()) < 0:\n",
        "            if False:\n",
    ),
    _one(
        "answers that fail are lost",
        OUTBOX,
        "                await asyncio.sleep(_RETRY_S)\n",
        "                unsent.clear()\n",
    ),
    _one(
        "answers that find no room are given up at once",
        OUTBOX,
        "                if await self._has_left():\n",
        "                if False:\n",
    ),
    _one(
        "an owner that was shut out goes on with the seals that compaction has left",
        OWNER,
        "        if not await fenced.sender.is_held():\n",
        "        if False:\n",
    ),
    _one(
        "what the owner before has left is not sent",
        OWNER,
        "            outbox.add_letters(Letter.unsent(tail.seals[-1]))\n",
        "            pass\n",
    ),
    # --- brokers that are silent -------------------------------------------------------------------------------------
    _one(
        "a leader is waited for though another one leads",
        PRODUCER,
        "                has_moved=partial(self._cluster.has_lost, node, ready),\n",
        "                has_moved=None,\n",
    ),
    _one(
        "an end is waited for though another broker leads",
        BOUNDS,
        "partial(self._cluster.has_lost, node, led) if led else None\n",
        "None\n",
    ),
    _one(
        "a coordinator is waited for though another one coordinates",
        ASKING,
        "has_moved=partial(self._has_moved, node)\n",
        "has_moved=None\n",
    ),
    _one(
        "a producer takes its own later epoch for somebody else's",
        ASKING,
        "        if self._is_repeated:\n",
        "        if False:\n",
    ),
    _one(
        "a later epoch is asked for so that the next coordinator does not know for whom it is",
        COORDINATOR,
        "        if self.joins_by_writing:\n            # An abort of nothing.",
        "        if False:\n            # An abort of nothing.",
    ),
    # --- leaders of partitions ---------------------------------------------------------------------------------------
    _one(
        "a takeover writes no barrier",
        OWNER,
        "        barrier = await fenced.sender.barrier()\n",
        "        barrier = None\n",
    ),
    _one(
        "the barrier is left in an open transaction",
        SENDER,
        "        await producer.abort()\n        return offsets",
        "        await producer.commit()\n        return offsets",
    ),
    _one(
        "an end is believed of a leader without the barrier",
        BOUNDS,
        "if behind.offset > above and stable.epoch == behind.epoch:",
        "if True:",
    ),
    _one(
        "seals are believed of a leader without the barrier",
        SEALS,
        "            end = await self._bounds.end(number, above)\n            if above is None or end > above:\n",
        "            end = await self._bounds.end(number)\n            if True:\n",
    ),
    _one(
        "a leader of an earlier epoch is believed",
        CLUSTER,
        "        if known == leader or (known and known.epoch > leader.epoch):\n",
        "        if known == leader:\n",
    ),
    _one(
        "whoever answers first is asked each time",
        CLUSTER,
        "        self._turn = (self._turn + 1) % len(known)\n",
        "        self._turn = 0\n",
    ),
    _one(
        "only the leader is asked where the log ends",
        ENDS,
        "{leader.node, *cluster.replicas(topic, number)}",
        "{leader.node}",
    ),
    _one(
        "an end is proved though another one leads",
        ENDS,
        "            if tells and leads == is_leader:\n",
        "            if tells:\n",
    ),
    _one(
        "nothing proves an end while a broker is silent",
        FIRING,
        "        if proved_s is not None and began_s - proved_s < _PROVED_FOR_S:\n",
        "        if True:\n",
    ),
    _one(
        "the reader stays with a leader that is none any more",
        FETCHING,
        "        await self._cluster.moved(self._topic)\n",
        "        await asyncio.Event().wait()\n",
    ),
    # --- producer and coordinator ------------------------------------------------------------------------------------
    _one(
        "what is sent again gets another number",
        PRODUCER,
        "                self._later(to, _LATER_S, look=True)\n            return\n",
        "                to.sequence += 1\n                self._later(to, _LATER_S, look=True)\n            return\n",
    ),
    _one(
        "a topic is taken for gone on the word of a leader that has not heard of it",
        FIRING,
        "_UNHEARD_S = 2.0",
        "_UNHEARD_S = 0.0",
    ),
    _one(
        "a topic that is gone holds up the others of its second",
        SENDER,
        "_MISSING_S = 0.3",
        "_MISSING_S = 1.0",
    ),
    _one(
        "a batch that the log has already counts as refused",
        PRODUCER,
        "                if code in (0, codes.DUPLICATE_SEQUENCE_NUMBER):\n",
        "                if code == 0:\n",
    ),
    _one(
        "numbers go on in the next epoch",
        PRODUCER,
        "            # Sequence numbers start again with each epoch.\n            self._partitions.clear()\n",
        "            pass\n",
    ),
    _one(
        "numbers go on in an epoch that was asked for",
        PRODUCER,
        "        # Sequence numbers start again with each epoch.\n        self._partitions.clear()\n"
        "        return is_held",
        "        return is_held",
    ),
    _one(
        "a partition is taken to be in the next transaction too",
        PRODUCER,
        "        for to in self._partitions.values():\n            to.has_joined = False\n",
        "",
    ),
    _one(
        "it commits before all is taken",
        PRODUCER,
        "        await self.flush()\n        await self._end(is_commit=True)\n",
        "        await self._end(is_commit=True)\n",
    ),
    _one(
        "who was shut out tries again",
        PRODUCER,
        "        if code in codes.FENCED:\n",
        "        if code in ():\n",
    ),
    _one(
        "the end of a transaction leaves the epoch as it was",
        COORDINATOR,
        "        if self.joins_by_writing:\n            self._is_now(answer)\n",
        "",
    ),
    _one(
        "an owner is asked for while a slice is open",
        SENDER,
        "        async with self._free:\n            return await self._producer.is_held()\n",
        "        return await self._producer.is_held()\n",
    ),
    _one(
        "a coordinator that is none any more is asked for ever",
        ASKING,
        "                        if code in codes.ELSEWHERE:\n                            self.node = None\n",
        "                        if code in codes.ELSEWHERE:\n                            pass\n",
    ),
    # --- offsets of doors --------------------------------------------------------------------------------------------
    _one(
        "whoever says that it coordinates is believed",
        PRODUCER,
        "                    await self.send_offsets(topic, {number: 0})\n",
        "",
    ),
    _one(
        "another broker than the one that gave the proof is believed",
        PRODUCER,
        "                    if self._offsets.answered_by == taken_by:\n",
        "                    if True:\n",
    ),
    _one(
        "an offset that was not answered may count in the next transaction",
        PRODUCER,
        "        elif self._offsets.unanswered > self._unanswered and not await self.is_held():\n",
        "        elif False:\n",
    ),
    _one(
        "a source is read anew where a leader has not what was read of it",
        SOURCE,
        "        if start <= position:\n",
        "        if False:\n",
    ),
    _one(
        "a source whose leader is silent is given up",
        SOURCE,
        "            if not isinstance(came, _DELAYS):\n",
        "            if True:\n",
    ),
    # --- follower ----------------------------------------------------------------------------------------------------
    _one(
        "what comes while records are held back overtakes them",
        FOLLOWER,
        "        if self._held:\n            self._held.append((records, position))\n            return\n",
        "",
    ),
    _one(
        "the position passes what is held back",
        FOLLOWER,
        "            kept_to = held[0].offset\n",
        "            pass\n",
    ),
    _one(
        "a store of another log is used",
        FOLLOWER,
        "        if partition.must_read_to > end:\n",
        "        if False:\n",
    ),
    _one(
        "a store that is ahead of the log is kept",
        FOLLOWER,
        "        if local and local.position > end:\n",
        "        if False:\n",
    ),
    _one(
        "a kept store is not reconciled",
        FOLLOWER,
        "            self.write(reconcile(partition, store.kept_rows(before), "
        "marks, store.versions, has_ids=has_ids))\n",
        "            assert has_ids or marks or True\n",
    ),
    _one(
        "a store that is not worth keeping is kept",
        FOLLOWER,
        "        elif not store.is_new:\n",
        "        elif False:\n",
    ),
    # --- store -------------------------------------------------------------------------------------------------------
    _one(
        "iterators outlive their store",
        STORE,
        "                iterator.throw(GeneratorExit)\n",
        "                pass\n",
    ),
    _one(
        "a range that is deleted begins with the first row that there ever was",
        STORE,
        "        if len(keys) > _SINGLY_MAX:\n            batch.delete_range(keys[0], before, family)\n",
        "        if keys:\n            batch.delete_range(kind, before, family)\n",
    ),
    _one(
        "rows that come in front of what was deleted are not looked for",
        STORE,
        "        self._least[kind] = min(self._least[kind], key)\n",
        "        pass\n",
    ),
    _one(
        "marks of what has fired stay",
        STORE,
        "            if self._has_marks:\n                dropped[_MARKS] = _MARKS + before\n",
        "",
    ),
    _one(
        "removed rows stay",
        STORE,
        "        for key in changes.removed:\n            batch.delete(key)\n",
        "",
    ),
    _one(
        "the lowest row is not known anew after rows were dropped",
        STORE,
        "        if before is not None or changes.removed:\n            self._lowest = None\n        elif",
        "        if",
    ),
    _one(
        "an id is forgotten though it was asked for again",
        STORE,
        "            if version and version.made_at == offset:\n",
        "            if version:\n",
    ),
    _one(
        "the id of a copy is forgotten with its original",
        "core/versions.py",
        "        return self.by or self.at\n",
        "        return self.by or self.offset\n",
    ),
    _one(
        "answers that a seal covers stay",
        STORE,
        "        if changes.answered_before is not None:\n",
        "        if False:\n",
    ),
    _one(
        "the open scan is not in the head",
        STORE_HEAD,
        "    flags = (_SCANNING if scan else 0) | (_HAS_CALLBACKS if head.has_callbacks else 0)\n",
        '    flags, tail = 0, b""\n',
    ),
    # --- moments of a second -----------------------------------------------------------------------------------------
    _one(
        "the log's end is not asked for at a moment with an id",
        FIRING,
        "            elif self._names_any(end_ms):\n",
        "            elif False:\n",
    ),
    _one(
        "a moment is opened that has not come",
        FIRING,
        "        return min(max(second * 1000, now_ms or 0) + 1, end_ms)\n",
        "        return min(max(second * 1000, now_ms or 0) + 300, end_ms)\n",
    ),
    _one(
        "a moment behind the ticked second is opened",
        FIRING,
        "        return min(max(second * 1000, now_ms or 0) + 1, end_ms)\n",
        "        return max(second * 1000, now_ms or 0) + 1\n",
    ),
    _one(
        "moments follow each other without a pause",
        FIRING,
        "max(due_s, self._opened_s + self._ports.settings.instant_every_ms / 1000)",
        "due_s",
    ),
    _one(
        "nobody looks at what was read since",
        OWNER,
        "            if changes.rows:\n                self._news.set()\n",
        "",
    ),
    _one(
        "a store forgets within which moment it was sealed",
        STORE_HEAD,
        "    if any(millis):\n",
        "    if False:\n",
    ),
    _one(
        "ticks of another leader count",
        TICK_CLOCK,
        "        kept = [each for each in self._ticks if each.epoch == tick.epoch]\n",
        "        kept = self._ticks\n",
    ),
    _one(
        "ticks of before a step of the clock count",
        TICK_CLOCK,
        "        kept = [each for each in kept if _told(each, tick.read_s) <= tick.appended_ms + _STEP_MS]\n",
        "",
    ),
    _one("the clock is not slowed", TICK_CLOCK, "_DRIFT = 0.001\n", "_DRIFT = 0.0\n"),
    _one(
        "milliseconds count from the start",
        PARTITION,
        "counts_millis = self.millis_from is not None and by >= self.millis_from",
        "counts_millis = True",
    ),
    _one(
        "milliseconds never count",
        PARTITION,
        "counts_millis = self.millis_from is not None and by >= self.millis_from",
        "counts_millis = False",
    ),
    _one(
        "what depends on milliseconds is not held back for the seal that tells of them",
        PARTITION,
        "            return Effect.UNDECIDED if self.may_be_in_time(appended_ms, before.due_ms) else Effect.TOO_LATE\n",
        "            return Effect.TOO_LATE\n",
    ),
    _one(
        "a seal that ends within a second says that earlier workers know it",
        PARTITION,
        "        form = max(min(self.format, 3), 3 if self.sealed_ms % 1000 or scan.end_ms % 1000 else 1)\n",
        "        form = min(self.format, 2)\n",
    ),
    _one(
        "what was cancelled is not read again while its id is known",
        DECISIONS,
        "before.second_ms if is_cancel and partition.format > 1 else record",
        "record",
    ),
    _one(
        "what is left of the second before is not fired with what is ready",
        PREBUILD,
        "            self._lowest = min(self._lowest, start)\n",
        "            pass\n",
    ),
    # --- partition ---------------------------------------------------------------------------------------------------
    _one(
        "what is read during a scan is put into it",
        PARTITION,
        "            if at >= scan.snapshot:\n",
        "            if False:\n",
    ),
    _one(
        "what a slice has fired is kept", PARTITION, "            if key <= scan.through:\n", "            if False:\n"
    ),
    _one("the snapshot does not count", PARTITION, "        elif at < head.snapshot:\n", "        elif True:\n"),
    _one(
        "a scan gets a new snapshot",
        PARTITION,
        "scan=self.scan or Scan(end_ms, head.position, read=read)",
        "scan=Scan(self.scan.end_ms if self.scan else end_ms, head.position, read=read)",
    ),
    _one(
        "a store that has read beyond the snapshot is kept",
        TAKEOVER,
        "    return local.position > scan.snapshot\n",
        "    return False\n",
    ),
    _one(
        "a scan with the same end and another snapshot is taken for one's own",
        TAKEOVER,
        "(own.end_ms, own.snapshot) == (scan.end_ms, scan.snapshot)",
        "own.end_ms == scan.end_ms",
    ),
    _one(
        "a slice on an older seal counts",
        TAKEOVER,
        "if not is_complete(seal) and first_ms_of(seal) == sealed_ms]",
        "if not is_complete(seal)]",
    ),
    _one(
        "a store that ends below restore_from is kept",
        TAKEOVER,
        "    if local is not None and local.position < restore_from:\n",
        "    if False:\n",
    ),
    _one(
        "restore_from forgets what waits",
        PARTITION,
        "        return self.position if lowest is None else max(lowest, self.head.done_below)\n",
        "        return self.position\n",
    ),
    _one(
        "what is in a scan is still cancelled",
        PARTITION,
        "before.at < scan.snapshot <= by:",
        "before.at < scan.snapshot <= by and False:",
    ),
    _one(
        "what an unsealed scan may fire is decided at once",
        PARTITION,
        "            return Effect.TOO_LATE if scan.through else Effect.UNDECIDED\n",
        "            return Effect.TOO_LATE\n",
    ),
    _one(
        "what nobody can tell any more is too late",
        PARTITION,
        "            return Effect.FORGOTTEN if self.is_answered(by) else Effect.TOO_LATE\n",
        "            return Effect.TOO_LATE\n",
    ),
    _one(
        "a cancel counts until the end of the second",
        PARTITION,
        "        if appended_ms >= self.closes_ms(before, by):\n",
        "        if appended_ms >= self.closes_ms(before, by) + 1000:\n",
    ),
    _one(
        "named requests are not remembered once they have fired",
        PARTITION,
        "        if contents.named:\n",
        "        if False:\n",
    ),
    _one(
        "conditions are judged before a seal says so",
        JUDGING,
        "            return not self.waits_to_judge\n",
        "            return self.format < 2\n",
    ),
    _one("what was ignored is not sealed", PARTITION, "            seal.ignored.extend(", "            sorted("),
    # --- callbacks in a field of their own ---------------------------------------------------------------------------
    _one(
        "callbacks are taken before a seal says so",
        JUDGING,
        "            return not self.waits_to_take\n",
        "            return False\n",
    ),
    _one(
        "callbacks are refused by workers that know them",
        JUDGING,
        "        callbacks_from = snapshot if self.waits_to_take else self.callbacks_from\n",
        "        callbacks_from = self.callbacks_from\n",
    ),
    _one(
        "a seal over callbacks can be gone on from by who does not know them",
        PARTITION,
        "        if self.head.has_callbacks:\n",
        "        if False:\n",
    ),
    _one(
        "a store forgets that there were callbacks",
        STORE_HEAD,
        " | (_HAS_CALLBACKS if head.has_callbacks else 0)\n",
        "\n",
    ),
    _one(
        "a copy of what was refused for its callback fires",
        ACCEPTING,
        "            if partition.refuses_callback(future.copy.offset):\n",
        "            if False:\n",
    ),
    _one(
        "a callback on a partition that is not there goes to another",
        CALLBACKS,
        "            return self.partition if self.partition < partitions else None\n",
        "            return self.partition % partitions\n",
    ),
    _one(
        "a seal does not tell of far callbacks, of which the lake sends copies",
        ACCEPTING,
        "topics=topics, has_callbacks=has_callbacks\n",
        "topics=topics, has_callbacks=has_callbacks and bool(rows)\n",
    ),
    _one(
        "an empty key is none",
        CALLBACKS,
        "        return (otherwise if self.hashed is None else hash_of(self.hashed)) % partitions\n",
        "        return (hash_of(self.hashed) if self.hashed else otherwise) % partitions\n",
    ),
    _one(
        "a tombstone has an empty value",
        CALLBACKS,
        "        return cls(asked.topic, key, value, partition,",
        '        return cls(asked.topic, key, value or b"", partition,',
    ),
    _one(
        "a copy counts though its id has a later record",
        DECISIONS,
        "    if record.timer_id and not stays:\n",
        "    if record.timer_id and (before is None or before.offset <= original.offset):\n",
    ),
    # --- decisions ---------------------------------------------------------------------------------------------------
    _one(
        "a repeated copy counts",
        DECISIONS,
        "    elif known.get(original.name) is not None:\n",
        "    elif False:\n",
    ),
    _one(
        "a stale copy counts", DECISIONS, "    if appended_s - original.decided_s > COPY_STALE_S:\n", "    if False:\n"
    ),
    _one(
        "an overtaken copy counts",
        DECISIONS,
        "    elif before is not None and before.latest >= original.decided:\n",
        "    elif False:\n",
    ),
    _one(
        "a copy is decided on without what it depends on",
        DECISIONS,
        "    elif original.decided < partition.head.known_from:\n",
        "    elif False:\n",
    ),
    _one(
        "withdrawn requests are not remembered",
        DECISIONS,
        "    out.remember.append((before.counted, since_ms))\n",
        "",
    ),
    _one(
        "an id is absent as soon as its timer has fired",
        DECISIONS,
        "record.appended_ms >= before.second_ms + ID_MEMORY_MS",
        "record.appended_ms >= before.second_ms",
    ),
    _one(
        "the version that a condition names does not matter",
        DECISIONS,
        "    is_meant = record.expected is None or (",
        "    is_meant = True or (",
    ),
    _one(
        "an ignored request stands when the log is read again",
        DECISIONS,
        '    """Tell whether the condition of *record* holds."""\n    if record.offset in partition.ignored:\n',
        '    """Tell whether the condition of *record* holds."""\n    if False:\n',
    ),
    # --- requests sent on to the partition of their id ---------------------------------------------------------------
    _one(
        "what is sent on goes to some partition", SLICES, "self._append(to, hash_of(timer_id) %", "self._append(to, 1 %"
    ),
    _one("what is sent on is not sealed as that", SLICES, "            self.contents.forwarded.append(offset)\n", ""),
    _one(
        "what is sent on leaves before the callbacks",
        SLICES,
        "            rest += [(batch, to.topic, at)",
        "            rest[:0] = [(batch, to.topic, at)",
    ),
    _one(
        "what was sent on is sent on again",
        VERDICTS,
        '    if future.HasField("copy") or future.HasField("forwarded"):\n',
        '    if future.HasField("copy"):\n',
    ),
    _one(
        "what is refused where it belongs is sent on",
        VERDICTS,
        "    return _judged_in(home, record, second_of(record.key), future, partitions)\n",
        "    return None, future\n",
    ),
    _one(
        "no cancel takes back what arrives later",
        DECISIONS,
        "    return record.first_ms < cancel.due_ms and",
        "    return False and",
    ),
    _one(
        "a cancel takes back what was appended after it",
        DECISIONS,
        "    return record.first_ms < cancel.due_ms and",
        "    return",
    ),
    _one(
        "a cancel that was sent on counts from its arrival",
        DECISIONS,
        "    first_ms = record.first_ms if record.first else record.appended_ms\n",
        "    first_ms = record.appended_ms\n",
    ),
    _one(
        "a cancel under a condition takes back what arrives later",
        DECISIONS,
        "    if record.due_ms is None and not record.condition:\n",
        "    if record.due_ms is None:\n",
    ),
    _one(
        "an answer names the place where the record has arrived",
        "core/versions.py",
        "            asked=self.first or f",
        "            asked=f",
    ),
    _one(
        "an answer forgets where its record came from",
        "core/versions.py",
        "outcome, version, first.decode())",
        'outcome, version, "")',
    ),
    # --- verdicts, rows, backlog, reconcile --------------------------------------------------------------------------
    _one(
        "a copy with a negative offset is accepted",
        VERDICTS,
        "not 0 <= future.copy.offset < future.copy.decidedOffset",
        "not future.copy.offset < future.copy.decidedOffset",
    ),
    _one(
        "an ignored request is kept",
        ACCEPTING,
        "if at not in decided.dropped and at not in decided.ignored]",
        "if at not in decided.dropped]",
    ),
    _one(
        "what may be late is kept in batches",
        ACCEPTING,
        "    if due is None or min(due.values(), default=partition.scanned_ms) < partition.scanned_ms:\n",
        "    if due is None:\n",
    ),
    _one(
        "a batch loses its ids when a part of it is withdrawn",
        ROWS,
        "plain=batch.plain, named=batch.named)",
        "plain=batch.plain, named=False)",
    ),
    _one(
        "what moves into a batch does not take it apart",
        RECONCILE,
        "        if bisect(news, first) != bisect(news, key):\n",
        "        if False:\n",
    ),
    _one(
        "what was done elsewhere still counts as waiting",
        RECONCILE,
        "    tally.remove(chunks_of([counted_under(was) for was in done]))\n",
        "",
    ),
    _one(
        "what was cancelled here and done elsewhere is known as cancelled",
        RECONCILE,
        "            changes.versions[timer_id] = partition.unsure(version)\n",
        "            pass\n",
    ),
    _one(
        "a chunk is forgotten with its last request",
        BACKLOG,
        "            if until_ms > max(before_ms, self._now_ms):\n",
        "            if False:\n",
    ),
    # --- full disks --------------------------------------------------------------------------------------------------
    _one(
        "a partition is taken over though its disk is full",
        OWNER,
        "        self._ports.stores.check_room(self.number)\n",
        "",
    ),
    _one(
        "a store is new though timer ids are known there",
        STORE,
        "        families = (self._db, self._ids, self._side)\n        return all",
        "        families = (self._db,)\n        return all",
    ),
    _one(
        "a store that a full disk has stopped is kept",
        OWNER,
        "        self.is_full, self._drop_store = True, self._ports.stores.make_room\n",
        "        self.is_full = True\n",
    ),
    # --- disks that cannot be read -----------------------------------------------------------------------------------
    _one(
        "a row that cannot be read is the last one",
        STORE,
        "rows.value()\n        rows.next()\n    rows.status()\n",
        "rows.value()\n        rows.next()\n",
    ),
    # --- reading -----------------------------------------------------------------------------------------------------
    _one(
        "partitions with a backlog starve the others of their broker",
        READER,
        "(self._first.get(node, 0) + 1) % len(positions)",
        "0",
    ),
    _one(
        "a partition that its leader withholds keeps others from being read",
        READER,
        "            self._tell_withheld(fetched, withheld)\n",
        "            self._tell_withheld(fetched, withheld)\n"
        "            if withheld:\n                return await self._find_leaders()\n",
    ),
    _one(
        "as much is asked for again as was not brought in time",
        FETCHING,
        "max(bytes_max // 4, _BYTES_MIN)",
        "bytes_max",
    ),
    _one(
        "a fetch session does not hear of later positions",
        FETCHING,
        "if self._known.get(number) != place",
        "if number not in self._known",
    ),
    _one(
        "a fetch session does not hear of partitions that are read no more",
        FETCHING,
        "return changed, self._known.keys() - wanted.keys(),",
        "return changed, (),",
    ),
    _one(
        "a lost fetch session is not begun anew",
        FETCHING,
        "            session.restart()\n            answer =",
        "            answer =",
    ),
    _one("a quota makes a partition unreadable", FETCHING, ".get(number)) is not None", "[number]) is not None"),
    _one("an emptied marker stops the reader", FETCHING, "next(iter(batch), None)", "next(iter(batch))"),
    _one(
        "ticks are read from a leader that was cut off for as long as it answers",
        "worker/ticks.py",
        "                    await self._cluster.refresh()\n",
        "                    pass\n",
    ),
    _one(
        "who cannot tell where a log ends counts as not leading it",
        ENDS,
        "isinstance(bound, Bound) or bound in _FOLLOWS",
        "bound is not None",
    ),
    _one(
        "who waits for a leader asks without a pause",
        BOUNDS,
        "                        why = told\n                    await asyncio.sleep(_PAUSE_S)\n",
        "                        why = told\n                        await asyncio.sleep(_PAUSE_S)\n",
    ),
    _one(
        "what has not been read in time is not shown",
        OWNER,
        "unread_s=self._follower.unread_s if self._serving else 0.0",
        "unread_s=0.0",
    ),
    _one(
        "what is overdue leaves out what lies behind an open transaction",
        "worker/overdue.py",
        "    return max(blocked, due, unread,",
        "    return max(due, unread,",
    ),
    _one(
        "a tick of thousands of digits is read as a number",
        "core/wire.py",
        " and len(text) <= 14 else None",
        " else None",
    ),
    # --- questions to brokers ----------------------------------------------------------------------------------------
    _one(
        "a broker that does not answer keeps its connection",
        CLUSTER,
        "            await self._drop(key, opening)\n            waited_s",
        "            waited_s",
    ),
    _one(
        "no other broker is asked while one is silent",
        CLUSTER,
        "timeout=_ASK_NEXT_S if left else None",
        "timeout=None",
    ),
    _one(
        "where there is nothing to log in with the brokers are to blame",
        CLUSTER,
        "        raise login or KafkaConnectionError(",
        "        raise KafkaConnectionError(",
    ),
    _one(
        "a topic is missing as soon as one broker does not know it",
        "worker/targets.py",
        "            for answer in await self._cluster.ask_two(settings_of(missing, asks_for)):\n",
        "            for answer in ():\n",
    ),
    _one(
        "a topic has no partitions as soon as one broker does not know it",
        "broker/topics.py",
        "        for answer in await cluster.ask_two(Metadata(missing)):\n",
        "        for answer in ():\n",
    ),
    _one(
        "a topic that was made is known as soon as one broker knows it",
        "broker/topics.py",
        "    while not all(_all_led(",
        "    while not any(_all_led(",
    ),
    _one("numbers of records have no end", PRODUCER, " & 0x7FFF_FFFF", ""),
    # --- topics that refuse ------------------------------------------------------------------------------------------
    _one("slices that are too slow stay as large", FIRING, "max(self.bytes // 4, _SLICE_BYTES_MIN)", "self.bytes"),
    _one("a slice has no bound in bytes", SLICES, " or self.bytes >= self._bytes_max", ""),
    _one("a topic is refused when it refuses for the first time", FIRING, "if topic in since_s and not", "if not"),
    _one(
        "a callback without a key goes to a compacted topic",
        "worker/accumulators.py",
        "    if outgoing.key is None and target.needs_key:\n",
        "    if False:\n",
    ),
    _one(
        "replicas that are missing are a topic's refusal", "broker/codes.py", "*ELSEWHERE, 19, 20,", "*ELSEWHERE, 20,"
    ),
    _one(
        "a requester speaks for the service",
        "core/wire.py",
        "            if (key := each.key) not in SERVICE_HEADERS\n",
        "            if (key := each.key)\n",
    ),
    # --- instances, and their status ---------------------------------------------------------------------------------
    _one(
        "instances have transactional ids in common",
        SENDER,
        "    return name if is_plain else",
        "    return name if True else",
    ),
    Mutant(
        "an owner's second producer is shut out by its first use",
        SENDER,
        (
            (
                "            for producer in self._producers:\n                await producer.start()\n",
                "            await self._producer.start()\n",
            ),
            (
                "        await self._free.acquire()\n        self._producer.begin()\n",
                "        await self._free.acquire()\n"
                "        if self._producer.coordinator.identity[0] < 0:\n            await self._producer.start()\n"
                "        self._producer.begin()\n",
            ),
        ),
    ),
    _one(
        "doors have transactional ids in common",
        "adapters/passing.py",
        '    return name if not prefix and "." not in topic else',
        "    return name if True else",
    ),
    _one(
        "partitions that were added are served",
        "worker/start.py",
        "    served = sealed_with or wanted\n",
        "    served = 0\n",
    ),
    _one(
        "a partition that stands still is not told of",
        "operate/health.py",
        "        elif overdue.age_s > LIMIT_S:\n",
        "        elif False:\n",
    ),
    # --- prebuilt callbacks ------------------------------------------------------------------------------------------
    _one(
        "a prebuilt slice is used however much comes first",
        PREBUILD,
        "            if before > _BEFORE_MAX:\n",
        "            if False:\n",
    ),
    _one(
        "what is withdrawn while it is built is fired",
        PREBUILD,
        "        if self._is_building:\n            self._is_building = False\n",
        "        if False:\n            self._is_building = False\n",
    ),
    # --- requests through a door -------------------------------------------------------------------------------------
    _one(
        "what is built one by one is missing in the history",
        SLICES,
        "            await self._record(second, offset, len(row), request)\n        return None",
        "        return None",
    ),
    _one("what the history does not take is counted nowhere", SLICES, "self.unrecorded += 1", "pass"),
    _one(
        "a door's request is rejected as it is",
        "core/rejected.py",
        "    if not value or SOURCE_TAG not in value:\n",
        "    if True:\n",
    ),
    _one(
        "what was told of a record before is taken for what is told now",
        "worker/rejecting.py",
        "    own = [header for header in own if not header[0].startswith(REJECT_PREFIX)]\n",
        "",
    ),
    _one(
        "a door's request that is gone is asked for empty",
        "core/rejected.py",
        "        if self.made and self.future is None:\n",
        "        if False:\n",
    ),
    # --- counts of read records in seals -----------------------------------------------------------------------------
    _one(
        "what is read again after a takeover is counted twice",
        SUMS,
        "            records = [record for record in records if record.offset >= self.to]\n",
        "            pass\n",
    ),
    _one(
        "what is known up to the fence is counted once more",
        SUMS,
        "        if to <= self.to:\n            return self\n",
        "",
    ),
    _one(
        "a store that has read further is not asked what it has counted",
        TAKEOVER,
        "kept.to > sealed.to)",
        "kept.to < sealed.to)",
    ),
    _one(
        "an owner goes on from sums that end below where it reads on",
        TAKEOVER,
        "    return sealed if sealed and sealed.to >= position else ReadSums(position, position)\n",
        "    return sealed or ReadSums(position, position)\n",
    ),
    _one(
        "a slice tells what was read behind its fence",
        PARTITION,
        "                scan.read.tell(seal)\n",
        "                (self.head.read or scan.read).tell(seal)\n",
    ),
    _one(
        "what is not decided yet is counted as read",
        FOLLOWER,
        "            kept = records[: accepted.count]\n",
        "            kept = records\n",
    ),
    _one("a store does not keep what it has counted", STORE_HEAD, "read.to == head.position", "False"),
    _one("a cancel is counted among the near too", SUMS, "every.minus(left).minus(taken)", "every.minus(left)"),
    _one(
        "a seal names the one before the last",
        FIRING,
        "        self._previous = hash_of_seal(sent.seal.SerializeToString())\n",
        "",
    ),
    _one("an owner does not name the seal of the one before", OWNER, ", tail.last),", ', b""),'),
    _one("a seal names no batches", FIRING, "                slice_.sent.tell(seal)\n", "                pass\n"),
    _one("a seal names batches in the order of sending", SENT, "batches.sort(key=itemgetter(0))", "pass"),
    _one("a seal names no full batch", SLICES, "if to is not self._rejects_to and to is not self._home:", "if False:"),
    _one("a seal names rejects", SLICES, "if to is not self._rejects_to and to is not self._home:", "if True:"),
    _one("a seal names any number of batches", SENT, "_BATCHES_MAX = 1_000", "_BATCHES_MAX = 1_000_000"),
    _one(
        "a batch that was built early is sent for nobody",
        BATCHES,
        " or batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] != producer",
        "",
    ),
    _one("a callback is dated when it was built", SLICES, "            batch.leave(now_ms)\n", "            pass\n"),
    # --- recurring timers --------------------------------------------------------------------------------------------
    _one(
        "a run that is replaced is asked for as if it were not known",
        PLANNING,
        "Condition.IF_PENDING if run_ms in dropped else Condition.IF_ABSENT",
        "Condition.IF_ABSENT",
    ),
    _one(
        "a run is asked for without a condition",
        PLANNING,
        "Condition.IF_PENDING if run_ms in dropped else Condition.IF_ABSENT",
        "Condition.CONDITION_UNSPECIFIED",
    ),
    _one(
        "a dropped run is not cancelled", PLANNING, "if planned.cancelled_ms < run_ms <= now_ms + EDGE_MS:", "if False:"
    ),
    _one(
        "a dropped run is cancelled at once",
        PLANNING,
        "if planned.cancelled_ms < run_ms <= now_ms + EDGE_MS:",
        "if planned.cancelled_ms < run_ms:",
    ),
    _one(
        "a change reaches runs that are due at once",
        PLANNING,
        "edge_ms, runs = now_ms + EDGE_MS, list(",
        "edge_ms, runs = now_ms, list(",
    ),
    _one(
        "runs of a schedule that is gone go on",
        PLANNING,
        "if _schedule_in(entry) is None and name not in self._changed:",
        "if False:",
    ),
    _one("a paused schedule runs", PLANNING, " and not schedule.paused:", ":"),
    _one("a pause is made up for", PLANNING, "is_behind = 0 < planned.next_ms <= edge_ms", "is_behind = True"),
    _one("a missed run is due in its own second", PLANNING, "if due < now_ms - _MISSED_MS:", "if False:"),
    _one("a schedule goes on after its last run", PLANNING, "planned.runs >= schedule.runs_max", "False"),
    _one("a change does not take runs back from their count", PLANNING, "    planned.runs -= len(ahead)\n", ""),
    _one(
        "a planner begins anew with each schedule when it takes over",
        PLANNING,
        "if entry is not None and (planned := _planned_in(entry)).schedule == offset:",
        "if entry is not None and (planned := _planned_in(entry)).schedule == -1:",
    ),
    _one("a run of the gap is left out", CALENDAR, "                return at * 1000\n", "                pass\n"),
]

# Survivors, and why nothing is wrong with that.
EXPLAINED: dict[str, str] = {}
