// SPDX-License-Identifier: Apache-2.0
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Apache's client, timed by itself (benchmarks/peers/apache.py). Ledgers are 3/3/2 with CRC32C and without a password. */
final class Bench implements Lines.Program {
    private static final int READ_AT_ONCE = 1000;
    private static final byte[] PASSWORD = new byte[0];
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private final AtomicLong last = new AtomicLong();
    private final Map<Long, BookKeeper> clients = new ConcurrentHashMap<>();

    private Bench() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new Bench());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        if (command.equals("client")) {
            ClientConfiguration conf = PeerClient.configuration(arguments);
            conf.setMetadataServiceUri(arguments.text("uri"));
            conf.setThrottleValue(0); // else 5,000 operations a second
            // At full rate 4.17.3 looks at the age of adds that are recycled meanwhile, and fails some that were answered.
            conf.setTimeoutMonitorIntervalSec(86_400);
            long number = last.incrementAndGet();
            clients.put(number, BookKeeper.forConfig(conf).build());
            return Lines.answer("client", number);
        }
        BookKeeper client = clients.get(arguments.number("client"));
        switch (command) {
            case "append":
                return append(client, arguments);
            case "single":
                return single(client, arguments.small("size"), arguments.small("count"));
            case "read":
                return read(client, arguments.number("ledger_id"));
            case "random":
                return random(client, arguments.number("ledger_id"), arguments.small("count"), arguments.small("at_once"));
            case "many":
                return many(client, arguments);
            case "recover":
                return recover(client, arguments.number("ledger_id"));
            default:
                throw new IllegalArgumentException(command);
        }
    }

    /** So many adds in flight; seconds from the first call to the last ack. */
    private static Map<String, Object> append(BookKeeper client, Lines.Arguments arguments) throws Exception {
        int size = arguments.small("size");
        int count = arguments.small("count");
        int inFlight = arguments.small("in_flight");
        LedgerHandle ledger = client.createLedger(3, 3, 2, DIGEST, PASSWORD);
        byte[] payload = new byte[size];
        new java.util.Random(size).nextBytes(payload);
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger failed = new AtomicInteger();
        long began = System.nanoTime();
        for (int n = 0; n < count; n++) {
            room.acquire();
            ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
                failed.compareAndSet(0, code);
                room.release();
            }, null);
        }
        room.acquire(inFlight);
        double seconds = (System.nanoTime() - began) / 1e9;
        if (failed.get() != 0) {
            throw BKException.create(failed.get());
        }
        if (arguments.flag("close")) {
            ledger.close();
        }
        return Lines.answer("ledger_id", ledger.getId(), "seconds", seconds);
    }

    /** One add at a time; milliseconds. */
    private static Map<String, Object> single(BookKeeper client, int size, int count) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, DIGEST, PASSWORD);
        byte[] payload = new byte[size];
        for (int n = 0; n < 100; n++) {
            ledger.addEntry(payload);
        }
        double[] took = new double[count];
        for (int n = 0; n < count; n++) {
            long began = System.nanoTime();
            ledger.addEntry(payload);
            took[n] = (System.nanoTime() - began) / 1e6;
        }
        ledger.close();
        Arrays.sort(took);
        return Lines.answer("p50", took[count / 2], "p99", took[count * 99 / 100]);
    }

    /** From the first entry to the last, one range asked for while the one before it is looked at. */
    private static Map<String, Object> read(BookKeeper client, long ledgerId) throws Exception {
        LedgerHandle ledger = client.openLedgerNoRecovery(ledgerId, DIGEST, PASSWORD);
        long end = ledger.getLastAddConfirmed();
        long bytes = 0;
        long began = System.nanoTime();
        var next = range((ReadHandle) ledger, 0, end);
        for (long first = 0; first <= end; first += READ_AT_ONCE) {
            try (LedgerEntries entries = next.get()) {
                next = range((ReadHandle) ledger, first + READ_AT_ONCE, end);
                for (LedgerEntry entry : entries) {
                    bytes += entry.getEntryBuffer().readableBytes();
                }
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        ledger.close();
        return Lines.answer("entries", end + 1, "bytes", bytes, "seconds", seconds);
    }

    /** Single entries anywhere in a ledger, so many asked for at a time. */
    private static Map<String, Object> random(BookKeeper client, long ledgerId, int count, int atOnce) throws Exception {
        ReadHandle ledger = client.openLedgerNoRecovery(ledgerId, DIGEST, PASSWORD);
        long[] entries = new java.util.Random(ledgerId).longs(count, 0, ledger.getLastAddConfirmed() + 1).toArray();
        Semaphore room = new Semaphore(atOnce);
        AtomicInteger failed = new AtomicInteger();
        long began = System.nanoTime();
        for (long entry : entries) {
            room.acquire();
            ledger.readAsync(entry, entry).whenComplete((found, error) -> {
                if (error == null) {
                    found.close();
                } else {
                    failed.incrementAndGet();
                }
                room.release();
            });
        }
        room.acquire(atOnce);
        return answer(began, failed, "reads");
    }

    /** Many ledgers, which stay open from call to call, each with one add in flight. */
    private static Map<String, Object> many(BookKeeper client, Lines.Arguments arguments) throws Exception {
        while (MANY.size() < arguments.small("ledgers")) {
            MANY.add(client.createLedger(3, 3, 2, DIGEST, PASSWORD));
        }
        byte[] payload = new byte[arguments.small("size")];
        new java.util.Random(7).nextBytes(payload);
        AtomicInteger failed = new AtomicInteger();
        var left = new java.util.concurrent.CountDownLatch(MANY.size());
        long began = System.nanoTime();
        for (LedgerHandle ledger : MANY) {
            addSome(ledger, payload, arguments.small("rounds"), failed, left);
        }
        left.await();
        return answer(began, failed, "adds");
    }

    private static final java.util.List<LedgerHandle> MANY = new java.util.ArrayList<>();

    /** One add after the other, each begun by the answer to the one before. */
    private static void addSome(LedgerHandle ledger, byte[] payload, int rounds, AtomicInteger failed,
                                java.util.concurrent.CountDownLatch left) {
        if (rounds == 0) {
            left.countDown();
            return;
        }
        ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
            failed.compareAndSet(0, code);
            addSome(ledger, payload, rounds - 1, failed, left);
        }, null);
    }

    private static Map<String, Object> answer(long began, AtomicInteger failed, String what) {
        double seconds = (System.nanoTime() - began) / 1e9;
        if (failed.get() != 0) {
            throw new IllegalStateException(what + " failed: " + failed.get());
        }
        return Lines.answer("seconds", seconds);
    }

    private static java.util.concurrent.CompletableFuture<LedgerEntries> range(ReadHandle ledger, long first, long end) {
        return first > end ? null : ledger.readAsync(first, Math.min(end, first + READ_AT_ONCE - 1));
    }

    /** Fence, recover and close. */
    private static Map<String, Object> recover(BookKeeper client, long ledgerId) throws Exception {
        long began = System.nanoTime();
        LedgerHandle ledger = client.openLedger(ledgerId, DIGEST, PASSWORD);
        double seconds = (System.nanoTime() - began) / 1e9;
        long end = ledger.getLastAddConfirmed();
        ledger.close();
        return Lines.answer("lac", end, "seconds", seconds);
    }
}
