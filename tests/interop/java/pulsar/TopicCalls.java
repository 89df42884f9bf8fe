// SPDX-License-Identifier: Apache-2.0
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Pulsar's Java client as a process: it writes what its Python client cannot, and reads (tests/interop/pulsar_topics.py). */
final class TopicCalls implements Lines.Program {
    private static final long WAIT_S = 120;
    private PulsarClient client;

    private TopicCalls() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new TopicCalls());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        switch (command) {
            case "connect":
                client = PulsarClient.builder().serviceUrl(arguments.text("url"))
                        .enableTransaction(!arguments.flag("without_transactions")).build();
                return Lines.answer();
            case "transact":
                return transact(arguments);
            case "odd":
                return odd(arguments);
            case "chunked":
                return chunked(arguments);
            case "read":
                return read(arguments);
            case "fill":
                return fill(arguments);
            case "drain":
                return drain(arguments);
            case "load":
                return load(arguments);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private ProducerBuilder<byte[]> producer(Lines.Arguments arguments) {
        return client.newProducer(Schema.BYTES)
                .topic(arguments.text("topic"))
                .producerName(arguments.text("name", "java"))
                .enableBatching(arguments.flag("batched"))
                .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS)
                .blockIfQueueFull(true)
                .sendTimeout(0, TimeUnit.SECONDS);
    }

    /**
     * Transactions that overlap: message k belongs to transaction k mod n, or to none if that number's outcome is
     * "none". At the end each is committed, aborted, or left as it is, in the order of their numbers. The first message
     * of each transaction waits for its ack: while a broker makes a topic's first snapshot of transactions it acks
     * messages out of order, and the client then connects again and sends them twice.
     */
    private Map<String, Object> transact(Lines.Arguments arguments) throws Exception {
        List<Object> outcomes = arguments.list("outcomes");
        List<Transaction> open = new ArrayList<>();
        for (Object outcome : outcomes) {
            open.add(outcome.equals("none") ? null : client.newTransaction()
                    .withTransactionTimeout(10, TimeUnit.MINUTES).build().get(WAIT_S, TimeUnit.SECONDS));
        }
        try (Producer<byte[]> producer = producer(arguments).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int k = 0; k < arguments.small("count"); k++) {
                Transaction mine = open.get(k % open.size());
                TypedMessageBuilder<byte[]> message = mine == null ? producer.newMessage() : producer.newMessage(mine);
                sent.add(message.value(("message " + k).getBytes(StandardCharsets.UTF_8)).sendAsync());
                if (k < open.size()) {
                    sent.get(k).get(WAIT_S, TimeUnit.SECONDS);
                }
            }
            CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0])).get(WAIT_S, TimeUnit.SECONDS);
        }
        for (int n = 0; n < open.size(); n++) {
            if (outcomes.get(n).equals("commit")) {
                open.get(n).commit().get(WAIT_S, TimeUnit.SECONDS);
            } else if (outcomes.get(n).equals("abort")) {
                open.get(n).abort().get(WAIT_S, TimeUnit.SECONDS);
            }
        }
        return Lines.answer();
    }

    /** Messages with everything that a message may have: null values, keys of bytes, ordering keys, delays. */
    private Map<String, Object> odd(Lines.Arguments arguments) throws Exception {
        ProducerBuilder<byte[]> builder = producer(arguments).compressionType(CompressionType.LZ4);
        if (arguments.flag("by_key")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        try (Producer<byte[]> producer = builder.create()) {
            for (int k = 0; k < arguments.small("count"); k++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage();
                message.value(k % 4 == 0 ? null : new byte[k % 5]);
                if (k % 3 == 0) {
                    message.keyBytes(new byte[] {(byte) k, (byte) 0xff, 0});
                } else if (k % 3 == 1) {
                    message.key("key " + k % 7);
                }
                if (k % 5 == 0) {
                    message.orderingKey(new byte[] {1, (byte) k});
                }
                if (k % 6 == 0) {
                    message.deliverAt(System.currentTimeMillis() + 1);
                }
                message.property("p", "é" + k).eventTime(k % 2 == 0 ? k + 1 : 0);
                message.sendAsync();
            }
            producer.flush();
        }
        return Lines.answer();
    }

    /** Messages of up to 2000 bytes in chunks of 300, from two producers, so that chunks of several messages mix. */
    private Map<String, Object> chunked(Lines.Arguments arguments) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            producers.add(client.newProducer(Schema.BYTES).topic(arguments.text("topic")).producerName("chunker " + n)
                    .enableBatching(false).enableChunking(true).chunkMaxMessageSize(300)
                    .compressionType(n == 0 ? CompressionType.NONE : CompressionType.ZSTD)
                    .sendTimeout(0, TimeUnit.SECONDS).create());
        }
        Random dice = new Random(7);
        for (int k = 0; k < arguments.small("count"); k++) {
            byte[] value = new byte[dice.nextInt(2000)];
            dice.nextBytes(value);
            sent.add(producers.get(k % 2).newMessage().key("k" + k).value(value).sendAsync());
        }
        CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0])).get(WAIT_S, TimeUnit.SECONDS);
        for (Producer<byte[]> producer : producers) {
            producer.close();
        }
        return Lines.answer();
    }

    private Map<String, Object> read(Lines.Arguments arguments) throws Exception {
        List<Object> rows = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES)
                .topic(arguments.text("topic"))
                .startMessageId(MessageId.earliest)
                .readCompacted(arguments.flag("compacted"))
                .create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(20, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                rows.add(row(message));
            }
        }
        return Lines.answer("rows", rows);
    }

    /** Messages of one size with random bytes, as fast as the broker takes them. */
    private Map<String, Object> fill(Lines.Arguments arguments) throws Exception {
        byte[] random = new byte[1 << 24];
        new Random(arguments.number("seed", 1)).nextBytes(random);
        int size = arguments.small("size");
        CompletableFuture<MessageId> last = CompletableFuture.completedFuture(null);
        try (Producer<byte[]> producer = client.newProducer(Schema.BYTES).topic(arguments.text("topic"))
                .enableBatching(arguments.flag("batched")).batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                .maxPendingMessages(5000).blockIfQueueFull(true).sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int k = 0; k < arguments.small("count"); k++) {
                int at = (int) ((long) k * size % (random.length - size));
                last = producer.sendAsync(Arrays.copyOfRange(random, at, at + size));
            }
            producer.flush();
            last.get(WAIT_S, TimeUnit.SECONDS);
        }
        return Lines.answer();
    }

    /** Reads so many messages from the first one on, and says how long it took. */
    private Map<String, Object> drain(Lines.Arguments arguments) throws Exception {
        long began = System.nanoTime();
        long bytes = 0;
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES).topic(arguments.text("topic"))
                .startMessageId(MessageId.earliest).receiverQueueSize(10_000).create()) {
            for (int k = 0; k < arguments.small("count"); k++) {
                bytes += reader.readNext().getData().length;
            }
        }
        return Lines.answer("seconds", (System.nanoTime() - began) / 1e9, "bytes", bytes);
    }

    /**
     * Producers and tailing consumers of topics named "topic-0", "topic-1" and so on. With a "rate" in messages a second
     * for all topics it sends at that rate, otherwise as fast as "in_flight" messages of each topic allow.
     */
    private Map<String, Object> load(Lines.Arguments arguments) throws Exception {
        int topics = arguments.small("topics");
        int count = arguments.small("count");
        long rate = arguments.number("rate", 0);
        byte[] value = new byte[arguments.small("size")];
        new Random(1).nextBytes(value);
        CountDownLatch received = new CountDownLatch(count);
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (int n = 0; n < topics; n++) {
            String topic = arguments.text("topic") + "-" + n;
            consumers.add(client.newConsumer(Schema.BYTES).topic(topic).subscriptionName("load")
                    .messageListener((consumer, message) -> {
                        consumer.acknowledgeAsync(message);
                        received.countDown();
                    }).subscribe());
            producers.add(client.newProducer(Schema.BYTES).topic(topic).blockIfQueueFull(true)
                    .maxPendingMessages(arguments.small("in_flight")).sendTimeout(0, TimeUnit.SECONDS).create());
        }
        long[] took = new long[count];
        CountDownLatch sent = new CountDownLatch(count);
        long began = System.nanoTime();
        for (int k = 0; k < count; k++) {
            if (rate > 0) {
                LockSupport.parkNanos(began + k * 1_000_000_000L / rate - System.nanoTime());
            }
            int number = k;
            long at = System.nanoTime();
            producers.get(k % topics).sendAsync(value).whenComplete((id, error) -> {
                took[number] = error == null ? System.nanoTime() - at : Long.MAX_VALUE;
                sent.countDown();
            });
        }
        boolean all = sent.await(WAIT_S, TimeUnit.SECONDS) && received.await(WAIT_S, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - began) / 1e9;
        for (Producer<byte[]> producer : producers) {
            producer.close();
        }
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
        Arrays.sort(took);
        return Lines.answer("all", all, "seconds", seconds, "p50_ms", took[count / 2] / 1e6,
                "p99_ms", took[count * 99 / 100] / 1e6);
    }

    private static Map<String, Object> row(Message<byte[]> message) {
        // Nothing tells a null value from an empty one but getValue, which a null value has as null.
        return Lines.answer(
                "id", Lines.text(message.getMessageId().toByteArray()),
                "value", message.getValue() == null ? null : Lines.text(message.getData()),
                "key", message.hasKey() ? Lines.text(message.getKeyBytes()) : null,
                "ordering_key", message.hasOrderingKey() ? Lines.text(message.getOrderingKey()) : null,
                "topic", message.getTopicName(),
                "publish_time", message.getPublishTime(),
                "event_time", message.getEventTime(),
                "properties", message.getProperties(),
                "producer", message.getProducerName(),
                "sequence_id", message.getSequenceId());
    }
}
