// SPDX-License-Identifier: Apache-2.0
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.bookkeeper.client.BKException.BKNotEnoughBookiesException;
import org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy;
import org.apache.bookkeeper.net.BookieId;

/**
 * Takes the bookies that a ledger's custom metadata names, in their order; the first that is left replaces a failed one.
 * A ledger that names none gets what the default policy chooses.
 */
public final class Chosen extends RackawareEnsemblePlacementPolicy {
    /** The key; its value is ids with commas between. */
    static final String BOOKIES = "interop.bookies";

    private static List<BookieId> chosen(Map<String, byte[]> custom) {
        List<BookieId> ids = new ArrayList<>();
        if (custom != null && custom.containsKey(BOOKIES)) {
            for (String id : new String(custom.get(BOOKIES), StandardCharsets.UTF_8).split(",")) {
                ids.add(BookieId.parse(id));
            }
        }
        return ids;
    }

    @Override
    public PlacementResult<List<BookieId>> newEnsemble(int ensembleSize, int writeQuorumSize, int ackQuorumSize,
            Map<String, byte[]> custom, Set<BookieId> excluded) throws BKNotEnoughBookiesException {
        List<BookieId> ids = chosen(custom);
        if (ids.isEmpty()) {
            return super.newEnsemble(ensembleSize, writeQuorumSize, ackQuorumSize, custom, excluded);
        }
        ids.removeAll(excluded);
        if (ids.size() < ensembleSize) {
            throw new BKNotEnoughBookiesException();
        }
        return PlacementResult.of(new ArrayList<>(ids.subList(0, ensembleSize)), PlacementPolicyAdherence.MEETS_STRICT);
    }

    @Override
    public PlacementResult<BookieId> replaceBookie(int ensembleSize, int writeQuorumSize, int ackQuorumSize,
            Map<String, byte[]> custom, List<BookieId> ensemble, BookieId failed, Set<BookieId> excluded)
            throws BKNotEnoughBookiesException {
        List<BookieId> ids = chosen(custom);
        if (ids.isEmpty()) {
            return super.replaceBookie(
                    ensembleSize, writeQuorumSize, ackQuorumSize, custom, ensemble, failed, excluded);
        }
        ids.removeAll(excluded);
        ids.removeAll(ensemble);
        ids.remove(failed);
        if (ids.isEmpty()) {
            throw new BKNotEnoughBookiesException();
        }
        return PlacementResult.of(ids.get(0), PlacementPolicyAdherence.MEETS_STRICT);
    }
}
