// SPDX-License-Identifier: Apache-2.0
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Payloads that both sides can compute (tests/interop/pattern.py says how). */
final class Pattern {
    private static final int BLOCK = 65536;
    private final byte[] block = new byte[BLOCK];
    private final long sizeMin;
    private final long sizeMax;

    Pattern(Lines.Arguments arguments) {
        sizeMin = arguments.number("size_min");
        sizeMax = arguments.number("size_max", sizeMin);
        MessageDigest sha = sha();
        for (int at = 0; at < BLOCK; at += 32) {
            sha.update(ByteBuffer.allocate(16).putLong(arguments.number("seed")).putLong(at / 32).array());
            System.arraycopy(sha.digest(), 0, block, at, 32);
        }
    }

    byte[] payload(long id) {
        int size = (int) (sizeMin + ((id * 2654435761L) & 0xffffffffL) % (sizeMax - sizeMin + 1));
        byte[] payload = new byte[size];
        int from = (int) ((id * 7919) & (BLOCK - 1));
        for (int at = 0; at < size; ) {
            int part = Math.min(size - at, BLOCK - from);
            System.arraycopy(block, from, payload, at, part);
            at += part;
            from = 0;
        }
        if (size >= 8) {
            ByteBuffer.wrap(payload).putLong(id);
        }
        return payload;
    }

    static MessageDigest sha() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** A checksum over payloads, each with its length before it. */
    static final class Sum {
        private final MessageDigest sha = sha();

        void take(byte[] payload) {
            sha.update(ByteBuffer.allocate(4).putInt(payload.length).array());
            sha.update(payload);
        }

        String hex() {
            StringBuilder text = new StringBuilder();
            for (byte part : sha.digest()) {
                text.append(String.format("%02x", part));
            }
            return text.toString();
        }
    }
}
