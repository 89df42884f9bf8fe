// SPDX-License-Identifier: Apache-2.0
import java.io.File;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.StateManager;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** Apache bookies in this process: what Apache's own main class starts, once for each configuration file. */
final class BookieHost implements Lines.Program {
    private static final long STOP_S = 20;
    private final Map<String, EmbeddedServer> servers = new ConcurrentHashMap<>();

    private BookieHost() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new BookieHost());
    }

    @Override
    public Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        switch (command) {
            case "format":
                return format(arguments.text("conf"));
            case "start":
                return start(arguments.text("conf"));
            case "stop":
                servers.remove(arguments.text("conf")).getLifecycleComponentStack().close();
                return Lines.answer();
            case "read_only":
                return readOnly(arguments.text("conf"), arguments.flag("on"));
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static ServerConfiguration load(String path) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new File(path).toURI().toURL());
        conf.validate();
        return conf;
    }

    /** Make the cluster's records; false if there is one. */
    private static Map<String, Object> format(String path) throws Exception {
        return Lines.answer("made", BookKeeperAdmin.initNewCluster(load(path)));
    }

    /** Answers when the bookie is registered and serves. */
    private Map<String, Object> start(String path) throws Exception {
        ServerConfiguration conf = load(path);
        EmbeddedServer server = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        server.getLifecycleComponentStack().start();
        if (!server.getBookieService().getServer().isRunning()) {
            throw new IllegalStateException("the bookie did not start; its log says why");
        }
        servers.put(path, server);
        return Lines.answer("bookie", BookieImpl.getBookieId(conf).toString());
    }

    private Map<String, Object> readOnly(String path, boolean on) throws Exception {
        BookieImpl bookie = (BookieImpl) servers.get(path).getBookieService().getServer().getBookie();
        StateManager state = bookie.getStateManager();
        (on ? state.transitionToReadOnlyMode() : state.transitionToWritableMode()).get(STOP_S, TimeUnit.SECONDS);
        return Lines.answer("read_only", state.isReadOnly());
    }
}
