package cli

import (
	"fmt"
	"sort"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// topics are help pages that belong to no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What exit codes mean", Long: exitCodes()},
		{Use: "selectors", Short: "How cells, runs and checkpoints are named", Long: `How cells, runs and checkpoints are named:

  web  c-0123456789abcdef   a cell, by its name, its id or the beginning of it
  web@3  web@latest         a checkpoint of it
  web:latest  r-1a2b        a run, by its cell or by its id or the beginning of it
  4f3ac2…                   a checkpoint, by the beginning of its digest
  pyagent                   a template; it shares its names with cells

Where a cell or run may be left out, it is the latest from this directory.`},
		{Use: "templates", Short: "Warm cells that are forked", Long: templatesHelp},
		{Use: "environment", Short: "Environment variables that pando obeys", Long: `Environment variables that pando obeys:

  PANDO_HOME   a directory, absolute, for state, cache, keys, logs and the socket
               (default: the XDG directories; for root /var/lib/pando,
               /var/cache/pando and /run/pando)
  PANDO_IDLE   how long a daemon without work stays, such as 1h (default: 10m)
  PANDO_BACKEND
               what isolates new cells for which no --backend is given
  PANDO_CONFIG off: defaults of flags that pando config keeps don't count
  PANDO_RESOLVER
               the DNS server (or several, with commas) that gateways of a
               daemon that is started now ask: ADDRESS or ADDRESS:PORT
               (default: those of this host)
  PANDO_ROOTS  a file of certificates (PEM) that such gateways trust besides
               this host's
  HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY
               the proxy through which such gateways reach the outside, by
               CONNECT, once the policy has allowed a host; what NO_PROXY names
               is dialled directly, and nothing else. The proxy finds the
               addresses of names: they are not checked, and receipts say so
  PANDO_KERNEL what microVM cells boot for which no --kernel is given, for a
               daemon that is started now: IMAGE or IMAGE:MODULES
  PANDO_KVM    off: a daemon that is started now has microVM cells emulated
  PANDO_RECORD_WRITES
               off: such a daemon has a machine's memory taken while it stands
               still, as on kernels before Linux 6.7
  PANDO_HOST   a daemon elsewhere, as pando serve prints it:
               http://HOST:PORT (this host alone) or https://HOST:PORT, with
               #sha256=FINGERPRINT where it has a certificate of its own making
  PANDO_TOKEN  the token to show there (pando token create)
  TRACEPARENT  the trace that this command is part of (W3C Trace Context)
  OTEL_…       where a daemon that is started now sends its traces, as
               OpenTelemetry has it: OTEL_EXPORTER_OTLP_ENDPOINT and others
  NO_COLOR     no colours
  PAGER        shows long output (default: less)`},
	}
}

// exitCodes is made from the table of error kinds.
func exitCodes() string {
	says := map[int][]string{0: {"done"}, 1: nil}
	for _, r := range api.Reasons {
		if r.Kind == "not-runnable" || r.Kind == "no-such-binary" {
			continue
		}
		says[r.Exit] = append(says[r.Exit], r.Says)
	}
	var codes []int
	for c := range says {
		codes = append(codes, c)
	}
	sort.Ints(codes)
	out := `run, exec and shell exit with the command's own code (128 + n after signal n), or:

  124  the command was ended because its time was up
  125  pando itself failed
  126  the program can't be executed
  127  the program was not found
  130  interrupted

Everything else:

`
	for _, c := range codes {
		for i, s := range says[c] {
			if i == 0 {
				out += fmt.Sprintf("  %3d  %s\n", c, s)
			} else {
				out += fmt.Sprintf("       %s\n", s)
			}
		}
	}
	return out
}
