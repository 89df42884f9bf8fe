// SPDX-License-Identifier: Apache-2.0
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import java.io.ByteArrayOutputStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.Encoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** Pulsar's Java client as a process that writes and reads typed messages (tests/interop/pulsar_schemas.py). */
final class SchemaCalls implements Lines.Program {
    /** A value whose schema Pulsar makes by reflection. */
    public static final class Item {
        public int number;
        public Long big;
        public String text;
        public List<String> tags;
        public Map<String, Long> counts;
        public byte[] data;
        public State state;
        public Inner inner;
        public Double ratio;
        public float half;
        public boolean flag;
    }

    /** A record in a record. */
    public static final class Inner {
        public String name;
        public Integer size;
    }

    /** Symbols. */
    public enum State { NEW, OLD }

    private PulsarClient client;

    private SchemaCalls() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new SchemaCalls());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        switch (command) {
            case "connect":
                client = PulsarClient.builder().serviceUrl(arguments.text("url")).build();
                return Lines.answer();
            case "produce":
                return produce(schema(arguments.text("kind")), arguments, values(arguments.text("kind")));
            case "produce_avro":
                return produceAvro(arguments);
            case "read":
                return read(schema(arguments.text("kind")), arguments);
            case "read_avro":
                SchemaInfo newest = SchemaInfo.builder().name("newest").type(SchemaType.AVRO)
                        .schema(arguments.text("definition").getBytes(StandardCharsets.UTF_8)).build();
                return read(Schema.generic(newest), arguments);
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static Schema<?> schema(String kind) {
        switch (kind) {
            case "BOOLEAN": return Schema.BOOL;
            case "INT8": return Schema.INT8;
            case "INT16": return Schema.INT16;
            case "INT32": return Schema.INT32;
            case "INT64": return Schema.INT64;
            case "FLOAT": return Schema.FLOAT;
            case "DOUBLE": return Schema.DOUBLE;
            case "STRING": return Schema.STRING;
            case "DATE": return Schema.DATE;
            case "TIME": return Schema.TIME;
            case "TIMESTAMP": return Schema.TIMESTAMP;
            case "INSTANT": return Schema.INSTANT;
            case "LOCAL_DATE": return Schema.LOCAL_DATE;
            case "LOCAL_TIME": return Schema.LOCAL_TIME;
            case "LOCAL_DATE_TIME": return Schema.LOCAL_DATE_TIME;
            case "JSON": return Schema.JSON(Item.class);
            case "AVRO": return Schema.AVRO(Item.class);
            case "INLINE": return Schema.KeyValue(Schema.INT64, Schema.AVRO(Item.class), KeyValueEncodingType.INLINE);
            case "SEPARATED": return Schema.KeyValue(
                    Schema.JSON(Inner.class), Schema.AVRO(Item.class), KeyValueEncodingType.SEPARATED);
            case "PROTOBUF_NATIVE": return Schema.PROTOBUF_NATIVE(FieldDescriptorProto.class);
            default: throw new IllegalArgumentException(kind);
        }
    }

    private static List<Object> values(String kind) {
        Instant at = Instant.ofEpochSecond(1_795_867_200L, 123_456_789);
        switch (kind) {
            case "BOOLEAN": return List.of(true, false);
            case "INT8": return List.of(Byte.MIN_VALUE, (byte) 0, Byte.MAX_VALUE);
            case "INT16": return List.of(Short.MIN_VALUE, (short) -1, Short.MAX_VALUE);
            case "INT32": return List.of(Integer.MIN_VALUE, 7, Integer.MAX_VALUE);
            case "INT64": return List.of(Long.MIN_VALUE, 7L, Long.MAX_VALUE);
            case "FLOAT": return List.of(0.5f, -Float.MAX_VALUE, Float.MIN_VALUE);
            case "DOUBLE": return List.of(0.1, -Double.MAX_VALUE, Double.MIN_VALUE);
            case "STRING": return List.of("", "é€", "text");
            case "DATE": return List.of(new Date(0), new Date(-1), Date.from(at));
            case "TIME": return List.of(new Time(0), new Time(43_200_001), new Time(-3_600_000));
            case "TIMESTAMP": return List.of(new Timestamp(0), new Timestamp(-1), Timestamp.from(at));
            case "INSTANT": return List.of(at, Instant.EPOCH.minusNanos(1), Instant.parse("9999-12-31T23:59:59Z"));
            case "LOCAL_DATE": return List.of(LocalDate.EPOCH, LocalDate.of(2026, 11, 28), LocalDate.of(1, 1, 1));
            case "LOCAL_TIME": return List.of(LocalTime.MIN, LocalTime.of(12, 0, 0, 1), LocalTime.MAX);
            case "LOCAL_DATE_TIME": return List.of(
                    LocalDateTime.ofInstant(at, ZoneOffset.UTC), LocalDateTime.of(1, 1, 1, 0, 0, 0, 999));
            case "JSON": case "AVRO": return List.of(item(0), item(1), item(2), item(3));
            case "INLINE": return List.of(new KeyValue<>(1L, item(0)), new KeyValue<>(-5L, item(1)));
            case "SEPARATED": return List.of(new KeyValue<>(item(1).inner, item(0)), new KeyValue<>(new Inner(), item(1)));
            case "PROTOBUF_NATIVE": return List.of(
                    FieldDescriptorProto.newBuilder().setName("a").setNumber(-7)
                            .setType(FieldDescriptorProto.Type.TYPE_INT64).setProto3Optional(true).build(),
                    FieldDescriptorProto.getDefaultInstance(),
                    FieldDescriptorProto.newBuilder().setJsonName("").setOptions(
                            com.google.protobuf.DescriptorProtos.FieldOptions.newBuilder().setPacked(false)
                                    .addTargets(com.google.protobuf.DescriptorProtos.FieldOptions.OptionTargetType
                                            .TARGET_TYPE_FILE)).build());
            default: throw new IllegalArgumentException(kind);
        }
    }

    /** Item k: with everything, with nulls, and with empty lists and texts. */
    private static Item item(int k) {
        Item made = new Item();
        made.number = k - 1;
        made.flag = k % 2 == 0;
        made.half = k / 2f;
        if (k % 2 == 1) {
            made.big = Long.MAX_VALUE - k;
            made.text = "é " + k;
            made.tags = List.of("x", "", "y");
            made.counts = Map.of("k", 1L << 40);
            made.data = new byte[] {(byte) 0xff, 0, 1};
            made.state = State.OLD;
            made.inner = new Inner();
            made.inner.name = "inner";
            made.ratio = 0.1;
        } else if (k == 2) {
            made.text = "";
            made.tags = List.of();
            made.counts = Map.of();
            made.data = new byte[0];
        }
        return made;
    }

    @SuppressWarnings("unchecked")
    private Map<String, Object> produce(Schema<?> schema, Lines.Arguments arguments, List<Object> values) throws Exception {
        try (Producer<Object> producer = producer((Schema<Object>) schema, arguments)) {
            for (Object value : values) {
                producer.newMessage().value(value).sendAsync();
            }
            if (!(values.get(0) instanceof KeyValue)) {
                producer.newMessage().value(null).sendAsync();
            }
            producer.flush();
        }
        return Lines.answer();
    }

    private <T> Producer<T> producer(Schema<T> schema, Lines.Arguments arguments) throws Exception {
        return client.newProducer(schema).topic(arguments.text("topic")).enableBatching(arguments.flag("batched"))
                .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create();
    }

    /** Produces values that are given in Avro's own JSON. */
    private Map<String, Object> produceAvro(Lines.Arguments arguments) throws Exception {
        org.apache.avro.Schema definition = new org.apache.avro.Schema.Parser().parse(arguments.text("definition"));
        try (Producer<byte[]> producer = producer(Schema.NATIVE_AVRO(definition), arguments)) {
            for (Object text : arguments.list("values")) {
                Object datum = new GenericDatumReader<>(definition)
                        .read(null, DecoderFactory.get().jsonDecoder(definition, (String) text));
                ByteArrayOutputStream out = new ByteArrayOutputStream();
                Encoder encoder = EncoderFactory.get().binaryEncoder(out, null);
                new GenericDatumWriter<>(definition).write(datum, encoder);
                ((org.apache.avro.io.BinaryEncoder) encoder).flush();
                producer.newMessage().value(out.toByteArray()).sendAsync();
            }
            producer.flush();
        }
        return Lines.answer();
    }

    private <T> Map<String, Object> read(Schema<T> schema, Lines.Arguments arguments) throws Exception {
        List<Object> rows = new ArrayList<>();
        try (Reader<T> reader = client.newReader(schema).topic(arguments.text("topic"))
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<T> message = reader.readNext(20, TimeUnit.SECONDS);
                rows.add(Lines.answer("id", Lines.text(message.getMessageId().toByteArray()),
                        "version", message.getSchemaVersion() == null ? null : Lines.text(message.getSchemaVersion()),
                        "value", plain(message.getValue())));
            }
        }
        return Lines.answer("rows", rows);
    }

    /** A value in the types of JSON: times as numbers, bytes in base64. */
    private static Object plain(Object value) throws ReflectiveOperationException {
        if (value instanceof Float) {
            return ((Float) value).doubleValue();
        } else if (value == null || value instanceof Boolean || value instanceof Number) {
            return value;
        } else if (value instanceof byte[]) {
            return Lines.text((byte[]) value);
        } else if (value instanceof ByteBuffer) {
            byte[] bytes = new byte[((ByteBuffer) value).remaining()];
            ((ByteBuffer) value).duplicate().get(bytes);
            return Lines.text(bytes);
        } else if (value instanceof GenericFixed) {
            return Lines.text(((GenericFixed) value).bytes());
        } else if (value instanceof Date) {  // Time and Timestamp, too
            return ((Date) value).getTime();
        } else if (value instanceof Instant) {
            return ((Instant) value).getEpochSecond() * 1_000_000 + ((Instant) value).getNano() / 1000;
        } else if (value instanceof LocalDate) {
            return ((LocalDate) value).toEpochDay();
        } else if (value instanceof LocalTime) {
            return ((LocalTime) value).toNanoOfDay();
        } else if (value instanceof LocalDateTime) {
            return plain(((LocalDateTime) value).toInstant(ZoneOffset.UTC));
        } else if (value instanceof Collection) {
            List<Object> made = new ArrayList<>();
            for (Object each : (Collection<?>) value) {
                made.add(plain(each));
            }
            return made;
        } else if (value instanceof EnumValueDescriptor) {
            return ((EnumValueDescriptor) value).getName();
        }
        return object(value);
    }

    private static Object object(Object value) throws ReflectiveOperationException {
        Map<String, Object> made = new LinkedHashMap<>();
        if (value instanceof Map) {
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                made.put(each.getKey().toString(), plain(each.getValue()));
            }
        } else if (value instanceof GenericRecord) {
            return plain(((GenericRecord) value).getNativeObject());
        } else if (value instanceof IndexedRecord) {
            for (org.apache.avro.Schema.Field each : ((IndexedRecord) value).getSchema().getFields()) {
                made.put(each.name(), plain(((IndexedRecord) value).get(each.pos())));
            }
        } else if (value instanceof KeyValue) {
            made.put("key", plain(((KeyValue<?, ?>) value).getKey()));
            made.put("value", plain(((KeyValue<?, ?>) value).getValue()));
        } else if (value instanceof com.google.protobuf.Message) {
            com.google.protobuf.Message message = (com.google.protobuf.Message) value;
            for (FieldDescriptor each : message.getDescriptorForType().getFields()) {
                boolean there = each.isRepeated() || message.hasField(each);
                made.put(each.getName(), there ? plain(message.getField(each)) : null);
            }
        } else if (value instanceof Item || value instanceof Inner) {
            for (Field each : value.getClass().getFields()) {
                made.put(each.getName(), plain(each.get(value)));
            }
        } else {
            return value.toString();  // texts, and symbols of enums
        }
        return made;
    }
}
