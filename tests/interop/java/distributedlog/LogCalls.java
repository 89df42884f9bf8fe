// SPDX-License-Identifier: Apache-2.0
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/** DistributedLog's own library as a process: each command is a call of its API (tests/interop/distributedlog.py). */
final class LogCalls implements Lines.Program {
    private static final long WRITE_S = 120;
    private static final int SESSION_S = 4;
    private static final int BULK = 500;
    private static final int READERS_MAX = 3;
    private final Map<String, DistributedLogManager> logs = new ConcurrentHashMap<>();
    private final Map<String, AsyncLogWriter> writers = new ConcurrentHashMap<>();
    private final AtomicLong acked = new AtomicLong();
    private Namespace namespace;

    private LogCalls() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new LogCalls());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        switch (command) {
            case "bind":
                DLMetadata.create(new BKDLConfig(arguments.text("servers"), arguments.text("root")))
                        .create(URI.create(arguments.text("uri")));
                return Lines.answer();
            case "open":
                return open(arguments);
            case "writer":
                return writer(arguments);
            case "write":
                return write(arguments);
            case "acked":
                return Lines.answer("acked", acked.get());
            case "close_writer":
                writers.remove(arguments.text("log")).asyncClose().get(WRITE_S, TimeUnit.SECONDS);
                return Lines.answer();
            case "read":
                return read(arguments);
            case "segments":
                return segments(arguments);
            case "truncate":
                return truncate(arguments);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private Map<String, Object> open(Lines.Arguments arguments) throws Exception {
        DistributedLogConfiguration conf = new DistributedLogConfiguration()
                .setEnsembleSize(3)
                .setWriteQuorumSize(3)
                .setAckQuorumSize(2)
                .setZKSessionTimeoutSeconds(SESSION_S)
                .setBKClientZKSessionTimeout(SESSION_S)
                .setLockTimeout(60)
                .setOutputBufferSize(16 * 1024)
                .setPeriodicFlushFrequencyMilliSeconds(10)
                .setReadAheadBatchSize(100)
                .setReadAheadMaxRecords(2000)
                .setMaxLogSegmentBytes(arguments.number("segment_bytes"))
                .setLogSegmentRollingIntervalMinutes(0) // but by their size
                .setLogSegmentRollingConcurrency(-1); // by default a second roll within a minute hangs
        namespace = NamespaceBuilder.newBuilder()
                .conf(conf)
                .uri(URI.create(arguments.text("uri")))
                .clientId(arguments.text("client"))
                .build();
        return Lines.answer();
    }

    private synchronized DistributedLogManager log(Lines.Arguments arguments) throws Exception {
        String name = arguments.text("log");
        if (!logs.containsKey(name)) {
            logs.put(name, namespace.openLog(name));
        }
        return logs.get(name);
    }

    /** Become the log's writer: takes its lock, and recovers the segment that an earlier writer left open. */
    private Map<String, Object> writer(Lines.Arguments arguments) throws Exception {
        AsyncLogWriter writer = log(arguments).openAsyncLogWriter().get(WRITE_S, TimeUnit.SECONDS);
        writers.put(arguments.text("log"), writer);
        return Lines.answer("last", writer.getLastTxId());
    }

    /** Records of the pattern, whose transaction ids are their numbers; "acked" counts those done in a row. */
    private Map<String, Object> write(Lines.Arguments arguments) throws Exception {
        AsyncLogWriter writer = writers.get(arguments.text("log"));
        Pattern pattern = new Pattern(arguments);
        long first = arguments.number("first");
        long end = first + arguments.number("count");
        Semaphore window = new Semaphore(arguments.small("window", 500));
        List<CompletableFuture<DLSN>> writes = new ArrayList<>();
        CompletableFuture<Object> failed = new CompletableFuture<>();
        acked.set(first);
        for (long id = first; id < end && !failed.isDone(); id++) {
            if (!window.tryAcquire(WRITE_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("a record was not answered within " + WRITE_S + " s");
            }
            long number = id;
            writes.add(writer.write(new LogRecord(id, pattern.payload(id))).whenComplete((done, failure) -> {
                if (failure == null) {
                    acked.compareAndSet(number, number + 1); // answers come in order
                } else {
                    failed.completeExceptionally(failure);
                }
                window.release();
            }));
        }
        CompletableFuture.allOf(writes.toArray(new CompletableFuture<?>[0]))
                .handle((done, failure) -> null).get(WRITE_S, TimeUnit.SECONDS);
        Map<String, Object> fields = Lines.answer("acked", acked.get());
        if (failed.isDone()) {
            failed.handle((done, failure) -> fields.put("failed", Lines.error(failure)));
        }
        return fields;
    }

    /** Records from {@code first} on, until {@code last} was read or nothing came for a while. */
    private Map<String, Object> read(Lines.Arguments arguments) throws Exception {
        long first = arguments.number("first");
        long last = arguments.number("last", Long.MAX_VALUE);
        long quietMs = arguments.number("quiet_ms");
        Pattern.Sum sum = new Pattern.Sum();
        long next = first;
        long wrong = -1;
        int opened = 0;
        for (boolean quiet = false; next <= last && !quiet; ) {
            AsyncLogReader reader = log(arguments).openAsyncLogReader(next).get(WRITE_S, TimeUnit.SECONDS);
            opened++;
            try {
                while (next <= last) {
                    for (LogRecordWithDLSN record : reader.readBulk(BULK).get(quietMs, TimeUnit.MILLISECONDS)) {
                        wrong = wrong < 0 && record.getTransactionId() != next ? record.getTransactionId() : wrong;
                        sum.take(record.getPayload());
                        next++;
                    }
                }
            } catch (TimeoutException ended) {
                quiet = true;
            } catch (ExecutionException failed) { // it may see a gap where a segment is being completed
                if (opened >= READERS_MAX) {
                    throw failed;
                }
            } finally {
                reader.asyncClose().get(WRITE_S, TimeUnit.SECONDS);
            }
        }
        return Lines.answer("count", next - first, "wrong", wrong, "checksum", sum.hex());
    }

    private Map<String, Object> segments(Lines.Arguments arguments) throws Exception {
        List<Object> found = new ArrayList<>();
        for (LogSegmentMetadata segment : log(arguments).getLogSegments()) {
            found.add(Lines.answer("ledger_id", segment.getLogSegmentId(), "in_progress", segment.isInProgress(),
                    "first", segment.getFirstTxId(), "last", segment.getLastTxId()));
        }
        return Lines.answer("segments", found);
    }

    /** Give up what is older than record {@code before}: whole segments, with their ledgers. */
    private Map<String, Object> truncate(Lines.Arguments arguments) throws Exception {
        log(arguments).purgeLogsOlderThan(arguments.number("before"));
        return Lines.answer("first", log(arguments).getFirstTxId());
    }
}
