// SPDX-License-Identifier: Apache-2.0
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.util.ReferenceCounted;
import io.netty.util.concurrent.DefaultThreadFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieClientImpl;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadEntryCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadEntryCallbackCtx;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.ByteBufList;

/** Single requests to single bookies, below ledgers: what Apache's client library sends for each of them. */
final class BookieCalls {
    private static final long ANSWER_S = 30;
    private final AtomicLong lastHandle = new AtomicLong();
    private final Map<Long, BookieClient> clients = new ConcurrentHashMap<>();
    private final ByteBufAllocator allocator = UnpooledByteBufAllocator.DEFAULT;

    Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        if (command.equals("bookie_client")) {
            return open(arguments);
        }
        Call call = new Call(arguments);
        switch (command) {
            case "bookie_close":
                clients.remove(arguments.number("client")).close();
                return Lines.answer();
            case "bookie_add":
                return call.add();
            case "bookie_read":
                return call.read();
            case "bookie_long_poll":
                return call.longPoll();
            case "bookie_batch_read":
                return call.batchRead();
            case "bookie_write_lac":
                return call.writeLac();
            case "bookie_read_lac":
                return call.readLac();
            case "bookie_force":
                return call.force();
            case "bookie_info":
                return call.info();
            case "bookie_list_entries":
                return call.listEntries();
            default:
                throw new IllegalArgumentException(command);
        }
    }

    @SuppressWarnings("deprecation") // Netty 4.2 has another event loop; 4.1, which two versions come with, has not
    private Map<String, Object> open(Lines.Arguments arguments) throws Exception {
        ClientConfiguration conf = PeerClient.configuration(arguments);
        if (arguments.flag("auth")) {
            conf.setClientAuthProviderFactoryClass(Plugin.class.getName());
        }
        EventLoopGroup loop = new NioEventLoopGroup(1, new DefaultThreadFactory("bookie-io", true));
        OrderedExecutor executor = OrderedExecutor.newBuilder().name("bookie-calls").numThreads(1).build();
        long number = lastHandle.incrementAndGet();
        clients.put(number, new BookieClientImpl(conf, loop, allocator, executor,
                Executors.newSingleThreadScheduledExecutor(new DefaultThreadFactory("bookie-timer", true)),
                NullStatsLogger.INSTANCE, BookieSocketAddress.LEGACY_BOOKIEID_RESOLVER));
        return Lines.answer("client", number);
    }

    /** An AUTH plug-in that no bookie knows. */
    public static final class Plugin implements ClientAuthProvider.Factory {
        @Override
        public void init(ClientConfiguration conf) {}

        @Override
        public String getPluginName() {
            return "interop";
        }

        @Override
        public ClientAuthProvider newProvider(
                org.apache.bookkeeper.proto.ClientConnectionPeer peer, AuthCallbacks.GenericCallback<Void> done) {
            return new ClientAuthProvider() {
                @Override
                public void init(AuthCallbacks.GenericCallback<AuthToken> send) {
                    send.operationComplete(0, AuthToken.wrap("token".getBytes(StandardCharsets.US_ASCII)));
                }

                @Override
                public void process(AuthToken token, AuthCallbacks.GenericCallback<AuthToken> send) {
                    done.operationComplete(0, null);
                }
            };
        }
    }

    /** One request and the wait for its answer; "rc" is the client library's code for it. */
    private final class Call {
        private final Lines.Arguments arguments;
        private final BookieClient client;
        private final BookieId bookie;
        private final long ledgerId;
        private final CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();

        Call(Lines.Arguments arguments) {
            this.arguments = arguments;
            this.client = clients.get(arguments.number("client"));
            this.bookie = arguments.has("bookie") ? BookieId.parse(arguments.text("bookie")) : null;
            this.ledgerId = arguments.number("ledger_id", -1);
        }

        private Map<String, Object> answered() throws Exception {
            return answer.get(ANSWER_S, TimeUnit.SECONDS);
        }

        private void give(int rc, Object... namesAndValues) {
            Map<String, Object> fields = Lines.answer("rc", rc, "name", Lines.codeName(rc));
            fields.putAll(Lines.answer(namesAndValues));
            answer.complete(fields);
        }

        private byte[] key() throws Exception {
            return arguments.has("key")
                    ? arguments.bytes("key") : DigestManager.generateMasterKey(arguments.bytes("password"));
        }

        /** The digest's enum is protobuf's in 4.16 and 4.17, and another class in 4.18. */
        private DigestManager digests() throws Exception {
            for (Method method : DigestManager.class.getMethods()) {
                if (method.getName().equals("instantiate") && method.getParameterCount() == 5) {
                    String name = arguments.text("digest").replace("MAC", "HMAC");
                    Object type = Arrays.stream(method.getParameterTypes()[2].getEnumConstants())
                            .filter(constant -> ((Enum<?>) constant).name().equals(name)).findFirst().orElseThrow();
                    return (DigestManager) method.invoke(null, ledgerId, arguments.bytes("password"), type, allocator,
                            arguments.small("wire", 3) == 2);
                }
            }
            throw new IllegalStateException("DigestManager.instantiate has changed");
        }

        Map<String, Object> add() throws Exception {
            int options = (arguments.flag("recovery") ? BookieProtocol.FLAG_RECOVERY_ADD : BookieProtocol.FLAG_NONE)
                    | (arguments.flag("high_priority") ? BookieProtocol.FLAG_HIGH_PRIORITY : BookieProtocol.FLAG_NONE);
            long entryId = arguments.number("entry_id");
            byte[] key = key();
            ReferenceCounted entry = digests().computeDigestAndPackageForSending(entryId, arguments.number("lac"),
                    arguments.number("length"), Unpooled.wrappedBuffer(arguments.bytes("payload")), key, options);
            client.addEntry(bookie, ledgerId, key, entryId, entry,
                    (rc, ledger, id, from, context) -> give(rc, "ledger_id", ledger, "entry_id", id), null, options,
                    false, arguments.flag("deferred_sync")
                            ? EnumSet.of(WriteFlag.DEFERRED_SYNC) : EnumSet.noneOf(WriteFlag.class));
            return answered();
        }

        private int readFlags() {
            return (arguments.flag("fence") ? BookieProtocol.FLAG_DO_FENCING : BookieProtocol.FLAG_NONE)
                    | (arguments.flag("high_priority") ? BookieProtocol.FLAG_HIGH_PRIORITY : BookieProtocol.FLAG_NONE);
        }

        /** The context in which the client library leaves the LAC that came with an answer. */
        private final class Lac implements ReadEntryCallbackCtx {
            private long lac = -1;

            @Override
            public void setLastAddConfirmed(long lac) {
                this.lac = lac;
            }

            @Override
            public long getLastAddConfirmed() {
                return lac;
            }
        }

        private ReadEntryCallback found(Lac lac) {
            return (rc, ledger, id, entry, context) ->
                    give(rc, "ledger_id", ledger, "entry_id", id, "entry", text(entry), "lac", lac.lac);
        }

        private String text(ByteBuf bytes) {
            if (bytes == null) {
                return null;
            }
            byte[] copy = new byte[bytes.readableBytes()];
            bytes.getBytes(bytes.readerIndex(), copy);
            return Lines.text(copy);
        }

        Map<String, Object> read() throws Exception {
            Lac lac = new Lac();
            byte[] key = arguments.flag("fence") ? key() : null;
            client.readEntry(bookie, ledgerId, arguments.number("entry_id"), found(lac), lac, readFlags(), key);
            return answered();
        }

        Map<String, Object> longPoll() throws Exception {
            Lac lac = new Lac();
            client.readEntryWaitForLACUpdate(bookie, ledgerId, arguments.number("entry_id", -1),
                    arguments.number("previous_lac"), arguments.number("timeout_ms"), arguments.flag("piggyback"),
                    found(lac), lac);
            return answered();
        }

        /** By name: 4.16 has no batch read. */
        Map<String, Object> batchRead() throws Exception {
            for (Method method : BookieClient.class.getMethods()) {
                if (method.getName().equals("batchReadEntries") && method.getParameterCount() == 8) {
                    Class<?> type = method.getParameterTypes()[5];
                    Object callback = Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                            (proxy, called, given) -> {
                                give((int) given[0], "ledger_id", given[1], "entry_id", given[2],
                                        "entries", texts(given[3]));
                                return null;
                            });
                    try {
                        method.invoke(client, bookie, ledgerId, arguments.number("entry_id"),
                                arguments.small("max_count"), arguments.number("max_size"), callback, null,
                                readFlags());
                    } catch (InvocationTargetException failure) {
                        throw (Exception) failure.getCause();
                    }
                    return answered();
                }
            }
            throw new UnsupportedOperationException("this version has no batch read");
        }

        private List<String> texts(Object list) {
            List<String> texts = new ArrayList<>();
            if (list instanceof ByteBufList) {
                ByteBufList entries = (ByteBufList) list;
                for (int i = 0; i < entries.size(); i++) {
                    texts.add(text(entries.getBuffer(i)));
                }
            }
            return texts;
        }

        Map<String, Object> writeLac() throws Exception {
            long lac = arguments.number("lac");
            ByteBufList body = digests().computeDigestAndPackageForSendingLac(lac);
            client.writeLac(bookie, ledgerId, key(), lac, body, (rc, ledger, from, context) -> give(rc), null);
            return answered();
        }

        Map<String, Object> readLac() throws Exception {
            client.readLac(bookie, ledgerId, (rc, ledger, lac, entry, context) ->
                    give(rc, "lac_body", text(lac), "entry", text(entry)), null);
            return answered();
        }

        Map<String, Object> force() throws Exception {
            client.forceLedger(bookie, ledgerId, (rc, ledger, from, context) -> give(rc), null);
            return answered();
        }

        Map<String, Object> info() throws Exception {
            client.getBookieInfo(bookie, arguments.number("requested"), (rc, info, context) ->
                    give(rc, "total", info.getTotalDiskSpace(), "free", info.getFreeDiskSpace()), null);
            return answered();
        }

        Map<String, Object> listEntries() throws Exception {
            byte[] body = client.getListOfEntriesOfLedger(bookie, ledgerId).get(ANSWER_S, TimeUnit.SECONDS)
                    .serializeStateOfEntriesOfLedger();
            return Lines.answer("rc", 0, "body", Lines.text(body));
        }
    }
}
