// SPDX-License-Identifier: Apache-2.0
import io.netty.buffer.Unpooled;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Versioned;

/** Apache's client library as a process: each command is a call of its API (tests/interop/peer_client.py). */
final class PeerClient implements Lines.Program {
    private static final int READ_AT_ONCE = 500;
    private final AtomicLong lastHandle = new AtomicLong();
    private final Map<Long, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Long, LedgerHandle> ledgers = new ConcurrentHashMap<>();
    private final Map<Long, Tail> tails = new ConcurrentHashMap<>();
    private final Set<Long> halted = ConcurrentHashMap.newKeySet();
    private final BookieCalls calls = new BookieCalls();

    private PeerClient() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new PeerClient());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        if (command.startsWith("bookie_")) {
            return calls.run(command, arguments);
        }
        switch (command) {
            case "client":
                return openClient(arguments);
            case "close_client":
                clients.remove(arguments.number("client")).close();
                return Lines.answer();
            case "create":
                return created(create(arguments));
            case "open":
                return created(open(arguments));
            case "add":
                return add(arguments);
            case "halt":
                halted.add(arguments.number("ledger"));
                return Lines.answer();
            case "force":
                ledger(arguments).force().get();
                return state(ledger(arguments));
            case "close":
                return close(arguments);
            case "state":
                return state(ledger(arguments));
            case "read":
                return read(arguments);
            case "last_confirmed":
                return lastConfirmed(arguments);
            case "tail":
                return tail(arguments);
            case "take":
                return tails.get(arguments.number("tail")).take(arguments);
            case "delete":
                client(arguments).newDeleteLedgerOp().withLedgerId(arguments.number("ledger_id")).execute().get();
                return Lines.answer();
            case "list":
                return list(arguments);
            case "metadata":
                return metadata(client(arguments).getLedgerMetadata(arguments.number("ledger_id")).get());
            case "bookies":
                return bookies(arguments);
            case "identity":
                return identity(arguments);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private BookKeeper client(Lines.Arguments arguments) {
        return clients.get(arguments.number("client"));
    }

    private LedgerHandle ledger(Lines.Arguments arguments) {
        return ledgers.get(arguments.number("ledger"));
    }

    static ClientConfiguration configuration(Lines.Arguments arguments) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setUseV2WireProtocol(arguments.small("wire", 3) == 2);
        arguments.map("conf").forEach((key, value) -> conf.setProperty(key, String.valueOf(value)));
        return conf;
    }

    private Map<String, Object> openClient(Lines.Arguments arguments) throws Exception {
        ClientConfiguration conf = configuration(arguments);
        conf.setMetadataServiceUri(arguments.text("uri"));
        long number = lastHandle.incrementAndGet();
        clients.put(number, BookKeeper.forConfig(conf).build());
        return Lines.answer("client", number);
    }

    // --- ledgers ---

    private LedgerHandle create(Lines.Arguments arguments) throws Exception {
        Map<String, byte[]> custom = new LinkedHashMap<>();
        arguments.map("custom").forEach((key, value) ->
                custom.put(key, java.util.Base64.getDecoder().decode((String) value)));
        CreateBuilder builder = client(arguments).newCreateLedgerOp()
                .withEnsembleSize(arguments.small("ensemble_size"))
                .withWriteQuorumSize(arguments.small("write_quorum_size"))
                .withAckQuorumSize(arguments.small("ack_quorum_size"))
                .withDigestType(DigestType.valueOf(arguments.text("digest")))
                .withPassword(arguments.bytes("password"))
                .withCustomMetadata(custom);
        if (arguments.flag("deferred_sync")) {
            builder = builder.withWriteFlags(EnumSet.of(WriteFlag.DEFERRED_SYNC));
        }
        if (arguments.has("ledger_id")) {
            return (LedgerHandle) builder.makeAdv().withLedgerId(arguments.number("ledger_id")).execute().get();
        }
        return (LedgerHandle) (arguments.flag("adv") ? builder.makeAdv().execute().get() : builder.execute().get());
    }

    private LedgerHandle open(Lines.Arguments arguments) throws Exception {
        return (LedgerHandle) client(arguments).newOpenLedgerOp()
                .withLedgerId(arguments.number("ledger_id"))
                .withDigestType(DigestType.valueOf(arguments.text("digest")))
                .withPassword(arguments.bytes("password"))
                .withRecovery(arguments.flag("recover"))
                .execute().get();
    }

    private Map<String, Object> created(LedgerHandle ledger) {
        long number = lastHandle.incrementAndGet();
        ledgers.put(number, ledger);
        Map<String, Object> fields = state(ledger);
        fields.put("ledger", number);
        return fields;
    }

    private Map<String, Object> close(Lines.Arguments arguments) throws Exception {
        LedgerHandle ledger = ledgers.remove(arguments.number("ledger"));
        ledger.close();
        return state(ledger);
    }

    private static Map<String, Object> state(LedgerHandle ledger) {
        return Lines.answer("ledger_id", ledger.getId(), "lac", ledger.getLastAddConfirmed(),
                "lap", ledger.getLastAddPushed(), "length", ledger.getLength(), "closed", ledger.isClosed());
    }

    /**
     * Adds of the pattern, or one given payload; "acked" counts those that the client took for done. They end early at a
     * failure, or by "halt".
     */
    private Map<String, Object> add(Lines.Arguments arguments) throws Exception {
        LedgerHandle ledger = ledger(arguments);
        boolean adv = ledger instanceof WriteAdvHandle;
        long first = arguments.number("first");
        long count = arguments.number("count");
        long pauseMs = arguments.number("pause_ms", 0);
        Pattern pattern = arguments.has("seed") ? new Pattern(arguments) : null;
        Semaphore window = new Semaphore(arguments.small("window", 1000));
        AtomicLong acked = new AtomicLong();
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        CompletableFuture<Long> failed = new CompletableFuture<>();
        long handle = arguments.number("ledger");
        halted.remove(handle);
        for (long id = first; id < first + count && !failed.isDone() && !halted.contains(handle); id++) {
            window.acquire();
            Thread.sleep(pauseMs);
            byte[] payload = pattern == null ? arguments.bytes("payload") : pattern.payload(id);
            CompletableFuture<Long> add = adv
                    ? ((WriteAdvHandle) ledger).writeAsync(id, Unpooled.wrappedBuffer(payload))
                    : ledger.appendAsync(Unpooled.wrappedBuffer(payload));
            adds.add(add.whenComplete((done, failure) -> {
                window.release();
                if (failure == null) {
                    acked.incrementAndGet();
                } else {
                    failed.completeExceptionally(failure);
                }
            }));
        }
        CompletableFuture.allOf(adds.toArray(new CompletableFuture<?>[0])).handle((done, failure) -> null).get();
        Map<String, Object> fields = state(ledger);
        fields.put("acked", acked.get());
        fields.put("first", adds.isEmpty() || adds.get(0).isCompletedExceptionally() ? -1 : adds.get(0).get());
        if (failed.isDone()) {
            failed.handle((done, failure) -> fields.put("failed", Lines.error(failure)));
        }
        return fields;
    }

    private Map<String, Object> lastConfirmed(Lines.Arguments arguments) throws Exception {
        LedgerHandle ledger = ledger(arguments);
        switch (arguments.text("how")) {
            case "read":
                return Lines.answer("lac", ledger.readLastAddConfirmedAsync().get());
            case "try":
                return Lines.answer("lac", ledger.tryReadLastAddConfirmedAsync().get());
            case "explicit":
                return Lines.answer("lac", ledger.readExplicitLastConfirmed());
            default:
                throw new IllegalArgumentException(arguments.text("how"));
        }
    }

    // --- reading ---

    private Map<String, Object> read(Lines.Arguments arguments) throws Exception {
        LedgerHandle ledger = ledger(arguments);
        Found found = new Found(arguments.flag("payloads"));
        long last = arguments.number("last");
        long next = arguments.number("first");
        while (next <= last) {
            long until = Math.min(last, next + READ_AT_ONCE - 1);
            try (LedgerEntries entries = entries(ledger, arguments, next, until)) {
                for (LedgerEntry entry : entries) {
                    found.take(entry);
                    next = entry.getEntryId() + 1;
                }
            }
        }
        return found.fields();
    }

    private static LedgerEntries entries(LedgerHandle ledger, Lines.Arguments arguments, long first, long last)
            throws Exception {
        switch (arguments.text("how", "confirmed")) {
            case "confirmed":
                return ledger.readAsync(first, last).get();
            case "unconfirmed":
                return ledger.readUnconfirmedAsync(first, last).get();
            case "batch": // 4.16 has none
                Method batch = ReadHandle.class.getMethod("batchReadAsync", long.class, int.class, long.class);
                int count = Math.toIntExact(Math.min(last - first + 1, arguments.number("max_count", Integer.MAX_VALUE)));
                return (LedgerEntries) ((CompletableFuture<?>)
                        batch.invoke(ledger, first, count, arguments.number("max_size", 0))).get();
            default:
                throw new IllegalArgumentException(arguments.text("how"));
        }
    }

    private Map<String, Object> tail(Lines.Arguments arguments) {
        Tail tail = new Tail(ledger(arguments), arguments.number("first", 0), arguments.number("poll_ms", 1000));
        long number = lastHandle.incrementAndGet();
        tails.put(number, tail);
        Thread thread = new Thread(tail, "tail");
        thread.setDaemon(true);
        thread.start();
        return Lines.answer("tail", number);
    }

    /** Long polls of one ledger, in a thread; it ends at the ledger's last entry, or at the first failure. */
    private static final class Tail implements Runnable {
        private final LedgerHandle ledger;
        private final long pollMs;
        private final LinkedBlockingQueue<Object> found = new LinkedBlockingQueue<>();
        private long next;

        Tail(LedgerHandle ledger, long first, long pollMs) {
            this.ledger = ledger;
            this.next = first;
            this.pollMs = pollMs;
        }

        @Override
        public void run() {
            try {
                while (!ledger.isClosed() || next <= ledger.getLastAddConfirmed()) {
                    if (next <= ledger.getLastAddConfirmed()) {
                        long last = Math.min(ledger.getLastAddConfirmed(), next + READ_AT_ONCE - 1);
                        try (LedgerEntries entries = ledger.readAsync(next, last).get()) {
                            entries.forEach(this::give);
                        }
                        continue;
                    }
                    long began = System.nanoTime();
                    try (LastConfirmedAndEntry polled =
                            ledger.readLastAddConfirmedAndEntryAsync(next, pollMs, false).get()) {
                        if (polled.hasEntry()) {
                            give(polled.getEntry());
                            continue;
                        }
                    }
                    long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
                    if (tookMs < pollMs / 2 && ledger.readLastAddConfirmedAsync().get() < next) {
                        Thread.sleep(pollMs - tookMs); // v2 has no long poll: the bookie answers at once
                    }
                }
                found.add("ended");
            } catch (Throwable failure) {
                found.add(failure);
            }
        }

        private void give(LedgerEntry entry) {
            found.add(new Object[] {entry.getEntryId(), entry.getEntryBytes()});
            next = entry.getEntryId() + 1;
        }

        /** Waits until so many entries are there, the tail has ended, or the time is over. */
        Map<String, Object> take(Lines.Arguments arguments) throws Exception {
            Found taken = new Found(arguments.flag("payloads"));
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(arguments.number("within_ms"));
            boolean ended = false;
            while (!ended && taken.count < arguments.number("count")) {
                Object item = found.poll(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
                if (item == null) {
                    break;
                } else if (item instanceof Object[]) {
                    taken.take((long) ((Object[]) item)[0], (byte[]) ((Object[]) item)[1]);
                } else if (item instanceof Exception) {
                    throw (Exception) item;
                } else {
                    ended = true;
                }
            }
            Map<String, Object> fields = taken.fields();
            fields.put("ended", ended);
            return fields;
        }
    }

    /** What was read: ids, and a checksum over lengths and payloads. */
    private static final class Found {
        private final Pattern.Sum sum = new Pattern.Sum();
        private final List<String> payloads;
        private long count;
        private long bytes;
        private long first = -1;
        private long last = -1;

        Found(boolean withPayloads) {
            payloads = withPayloads ? new ArrayList<>() : null;
        }

        void take(LedgerEntry entry) {
            take(entry.getEntryId(), entry.getEntryBytes());
        }

        void take(long id, byte[] payload) {
            if (count > 0 && id != last + 1) {
                throw new IllegalStateException("entry " + id + " follows entry " + last);
            }
            first = count == 0 ? id : first;
            last = id;
            count++;
            bytes += payload.length;
            sum.take(payload);
            if (payloads != null) {
                payloads.add(Lines.text(payload));
            }
        }

        Map<String, Object> fields() {
            Map<String, Object> fields = Lines.answer(
                    "first", first, "last", last, "count", count, "size", bytes, "checksum", sum.hex());
            if (payloads != null) {
                fields.put("payloads", payloads);
            }
            return fields;
        }
    }

    // --- metadata ---

    /** By the administrator's API: the client's newListLedgersOp() gives one range of ids, and ends there. */
    private Map<String, Object> list(Lines.Arguments arguments) throws Exception {
        List<Long> ids = new ArrayList<>();
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client(arguments), new ClientConfiguration())) {
            admin.listLedgers().forEach(ids::add);
        }
        return Lines.answer("ledger_ids", ids);
    }

    private static Map<String, Object> metadata(LedgerMetadata metadata) {
        Map<String, Object> ensembles = new LinkedHashMap<>();
        metadata.getAllEnsembles().forEach((first, members) -> {
            List<String> names = new ArrayList<>();
            members.forEach(member -> names.add(member.toString()));
            ensembles.put(String.valueOf(first), names);
        });
        Map<String, Object> custom = new LinkedHashMap<>();
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, Lines.text(value)));
        return Lines.answer(
                "ensemble_size", metadata.getEnsembleSize(),
                "write_quorum_size", metadata.getWriteQuorumSize(),
                "ack_quorum_size", metadata.getAckQuorumSize(),
                "state", metadata.getState().toString(),
                "last_entry_id", metadata.getLastEntryId(),
                "length", metadata.getLength(),
                "digest", String.valueOf(metadata.getDigestType()),
                "password", Lines.text(metadata.getPassword()),
                "ctime", metadata.getCtime(),
                "format_version", metadata.getMetadataFormatVersion(),
                "custom", custom,
                "ensembles", ensembles);
    }

    private Map<String, Object> bookies(Lines.Arguments arguments) throws Exception {
        BookKeeper client = client(arguments);
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client, new ClientConfiguration())) {
            Map<String, Object> infos = new LinkedHashMap<>();
            List<BookieId> there = new ArrayList<>(admin.getAvailableBookies());
            there.addAll(admin.getReadOnlyBookies());
            for (BookieId id : there) {
                infos.put(id.toString(), info(admin.getBookieServiceInfo(id)));
            }
            return Lines.answer("writable", names(admin.getAvailableBookies()),
                    "read_only", names(admin.getReadOnlyBookies()), "all", names(admin.getAllBookies()),
                    "infos", infos);
        }
    }

    private static List<String> names(Iterable<BookieId> ids) {
        List<String> names = new ArrayList<>();
        ids.forEach(id -> names.add(id.toString()));
        names.sort(null);
        return names;
    }

    private static Map<String, Object> info(BookieServiceInfo info) {
        List<Object> endpoints = new ArrayList<>();
        for (BookieServiceInfo.Endpoint endpoint : info.getEndpoints()) {
            endpoints.add(Lines.answer("id", endpoint.getId(), "host", endpoint.getHost(),
                    "port", endpoint.getPort(), "protocol", endpoint.getProtocol(),
                    "auth", endpoint.getAuth(), "extensions", endpoint.getExtensions()));
        }
        return Lines.answer("endpoints", endpoints, "properties", info.getProperties());
    }

    /** The cluster's instance id, and the cookies of the bookies asked for, as Apache's registration manager reads. */
    private static Map<String, Object> identity(Lines.Arguments arguments) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(arguments.text("uri"));
        return MetadataDrivers.runFunctionWithRegistrationManager(conf, registrations -> {
            try {
                Map<String, Object> cookies = new LinkedHashMap<>();
                for (Object id : arguments.list("cookies_of")) {
                    Versioned<Cookie> cookie =
                            Cookie.readFromRegistrationManager(registrations, BookieId.parse((String) id));
                    cookies.put((String) id, cookie.getValue().toString());
                }
                return Lines.answer("instance_id", registrations.getClusterInstanceId(), "cookies", cookies);
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        });
    }
}
