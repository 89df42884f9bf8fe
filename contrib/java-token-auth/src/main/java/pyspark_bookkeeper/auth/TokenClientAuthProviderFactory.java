// SPDX-License-Identifier: Apache-2.0
package pyspark_bookkeeper.auth;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.bookkeeper.auth.AuthCallbacks;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.ClientAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.proto.ClientConnectionPeer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends the token in a file to a bookie, once for each connection and over TLS only.
 *
 * <p>A client uses it if {@code clientAuthProviderFactoryClass} names this class. {@code tokenPath} (or the environment
 * variable BK_TOKEN_PATH) names the file, which is read for each connection.
 */
public final class TokenClientAuthProviderFactory implements ClientAuthProvider.Factory {

    /** The name of the plug-in, which a bookie compares with its own. */
    public static final String PLUGIN = "bookkeeper-token";

    public static final String PATH_KEY = "tokenPath";
    public static final String PATH_VARIABLE = "BK_TOKEN_PATH";

    private static final int BYTES_MAX = 4096;
    private static final Logger LOG = LoggerFactory.getLogger(TokenClientAuthProviderFactory.class);

    private Path path;

    @Override
    public void init(ClientConfiguration conf) throws IOException {
        String named = conf.getString(PATH_KEY, System.getenv(PATH_VARIABLE));
        if (named == null || named.isEmpty()) {
            throw new IOException("the token file is not named: set " + PATH_KEY + ", or " + PATH_VARIABLE);
        }
        String tls = conf.getTLSProviderFactoryClass();
        if (tls == null || tls.isEmpty()) {
            throw new IOException("a token is never sent without TLS: set tlsProviderFactoryClass");
        }
        path = Paths.get(named);
    }

    @Override
    public String getPluginName() {
        return PLUGIN;
    }

    @Override
    public ClientAuthProvider newProvider(
            ClientConnectionPeer connection, AuthCallbacks.GenericCallback<Void> done) {
        return new Provider(path, connection, done);
    }

    private static byte[] read(Path path) throws IOException {
        byte[] found = new byte[2 * BYTES_MAX];
        int size = 0;
        try (InputStream file = Files.newInputStream(path)) {
            for (int count; size < found.length && (count = file.read(found, size, found.length - size)) > 0; ) {
                size += count;
            }
        }
        String token = new String(found, 0, size, StandardCharsets.ISO_8859_1).trim();
        if (token.length() > BYTES_MAX || !token.matches("[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+")) {
            throw new IOException(path + " does not contain a token"); // never show the contents
        }
        return token.getBytes(StandardCharsets.ISO_8859_1);
    }

    /** The exchange on one connection: the token is sent once TLS is up, and the bookie answers once. */
    private static final class Provider implements ClientAuthProvider {
        private final Path path;
        private final ClientConnectionPeer connection;
        private final AuthCallbacks.GenericCallback<Void> done;
        private AuthCallbacks.GenericCallback<AuthToken> send;

        Provider(Path path, ClientConnectionPeer connection, AuthCallbacks.GenericCallback<Void> done) {
            this.path = path;
            this.connection = connection;
            this.done = done;
        }

        /** Called by the client before START_TLS, when nothing may be sent yet. */
        @Override
        public void init(AuthCallbacks.GenericCallback<AuthToken> cb) {
            send = cb;
        }

        @Override
        public void onProtocolUpgrade() {
            if (!connection.isSecure()) {
                LOG.error("the connection to {} does not use TLS: no token is sent", connection.getRemoteAddr());
                done.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                return;
            }
            byte[] token;
            try {
                token = read(path);
            } catch (IOException error) {
                LOG.error("this client's token cannot be read: {}", error.toString());
                done.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                return;
            }
            send.operationComplete(BKException.Code.OK, AuthToken.wrap(token));
        }

        @Override
        public void process(AuthToken answer, AuthCallbacks.GenericCallback<AuthToken> cb) {
            done.operationComplete(BKException.Code.OK, null);
        }
    }
}
