// SPDX-License-Identifier: Apache-2.0
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.util.concurrent.DefaultThreadFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieClientImpl;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.stats.NullStatsLogger;

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
            case "bookie_read":
                return call.read();
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

        Map<String, Object> read() throws Exception {
            client.readEntry(bookie, ledgerId, arguments.number("entry_id"),
                    (rc, ledger, id, entry, context) -> give(rc), null, BookieProtocol.FLAG_NONE, null);
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
