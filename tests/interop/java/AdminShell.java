// SPDX-License-Identifier: Apache-2.0
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/** Apache's BookieShell, one command after the other in one process: what each printed, and its exit code. */
final class AdminShell implements Lines.Program {
    private AdminShell() {}

    public static void main(String[] args) throws Exception {
        Lines.serve(new AdminShell());
    }

    @Override
    public synchronized Map<String, Object> run(String command, Lines.Arguments arguments) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new File(arguments.text("conf")).toURI().toURL());
        BookieShell shell = new BookieShell(
                LedgerIdFormatter.newLedgerIdFormatter(conf), EntryFormatter.newEntryFormatter(conf));
        shell.setConf(conf);
        String[] words = arguments.list("arguments").toArray(new String[0]);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream log = System.err;
        PrintStream here = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(here);
        System.setErr(here); // where the log goes
        int code;
        try {
            code = shell.run(words);
        } catch (Exception failure) { // of which Apache's main class makes a stack trace and a code
            failure.printStackTrace(here);
            code = 1;
        } finally {
            System.setOut(log);
            System.setErr(log);
        }
        String text = printed.toString(StandardCharsets.UTF_8);
        log.print(text);
        return Lines.answer("code", code, "output", text);
    }
}
