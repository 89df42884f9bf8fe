// SPDX-License-Identifier: Apache-2.0
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
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
                client = PulsarClient.builder().serviceUrl(arguments.text("url")).enableTransaction(true).build();
                return Lines.answer();
            case "transact":
                return transact(arguments);
            case "odd":
                return odd(arguments);
            case "chunked":
                return chunked(arguments);
            case "read":
                return read(arguments);
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
     * "none". At the end each is committed, aborted, or left as it is, in the order of their numbers.
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
