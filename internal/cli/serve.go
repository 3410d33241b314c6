package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/paths"
)

// ServeRequest configures a daemon for callers over the network.
type ServeRequest struct {
	Listen     []string // addresses with ports
	TLS        bool     // also at addresses that only this host can connect to
	Cert, Key  string   // files; "" for a certificate of the daemon's own
	FirstScope string   // scope of the token that is made when there is none; "" makes none
	Limits     ServeLimits
	Ceilings   string   // the operator's file of ceilings; "" for the default path
	BuildAllow []string // hosts that builds of templates through the E2B API may reach: see --allow of run
	// BuildImages are the repositories of images that those builds may start from.
	BuildImages []string

	// TakeOver ends a daemon that answers at no TCP address, and waits for one that is ending.
	// It fails when another answers at one.
	TakeOver func(ctx context.Context) error

	Say func(format string, args ...any) // prints later messages for the user
}

// Served describes a daemon that answers.
type Served struct {
	URLs        []string `json:"urls"`
	Token       string   `json:"token,omitempty"`       // the first token, if it was made now
	Fingerprint string   `json:"fingerprint,omitempty"` // of the daemon's own certificate: SHA-256, in hex
}

// Serve runs a daemon in the foreground until ctx ends or the daemon is stopped. It calls ready
// when the daemon answers.
type Serve func(ctx context.Context, h paths.Home, r ServeRequest, ready func(Served) error) error

func (a *app) serveCmd() *cobra.Command {
	var r ServeRequest
	c := &cobra.Command{
		Use: "serve", Short: "Run the daemon in the foreground, also for callers over the network", Args: cobra.NoArgs,
		Long: `Run the daemon in the foreground. Beside its own socket it answers at a TCP
address: to the command line (PANDO_HOST), to SDKs, and to programs written for
E2B. Every connection there needs a token. The first token is made and printed when
there is none; pando token create makes others.

An address that other hosts can reach is served with TLS: with your certificate, or
with the daemon's own. The fingerprint of the daemon's own is printed, for clients to
pin.

A daemon that runs already hands over to this one. Cells survive that, and also the
end of this daemon. When the daemon is killed after it worked for a while, another
one starts at once. This command waits up to half a minute for a daemon that is
ending. It does not start beside a daemon with a TCP address.`,
		Example: `  pando serve &
  pando serve --listen 0.0.0.0:7070 --tls-cert cert.pem --tls-key key.pem`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (r.Cert == "") != (r.Key == "") {
				return usage("--tls-cert and --tls-key go together")
			}
			switch r.FirstScope {
			case "none":
				r.FirstScope = ""
			case "read", "run", "admin":
			default:
				return usage("--first-token takes read, run, admin or none, not %q", r.FirstScope)
			}
			if r.Ceilings != "" {
				var err error
				if r.Ceilings, err = filepath.Abs(r.Ceilings); err != nil {
					return err
				}
			}
			if !cmd.Flags().Changed("min-free") {
				r.Limits.Free = 0 // less on a small disk
			}
			if a.remote {
				return usage("it serves this host's installation: unset PANDO_HOST")
			}
			r.Say = func(format string, args ...any) { a.say("pando: "+format, args...) }
			r.TakeOver = a.takeOver
			return apiError(a.serve(cmd.Context(), a.home, r, a.served))
		},
	}
	f := c.Flags()
	f.StringSliceVar(&r.Listen, "listen", []string{"127.0.0.1:7070"}, "address and port; more than one with commas. Sockets of systemd come in their place")
	f.BoolVar(&r.TLS, "tls", false, "use TLS also at addresses that only this host can reach")
	f.StringVar(&r.Cert, "tls-cert", "", "file with your certificate, PEM")
	f.StringVar(&r.Key, "tls-key", "", "file with its key, PEM; readable by its owner alone")
	f.StringVar(&r.FirstScope, "first-token", "run", "scope of the token that is made when there is none: read, run, admin; none makes no token")
	f.StringSliceVar(&r.BuildAllow, "build-allow", nil, "what the steps of E2B's Template.build may reach: HOST[:PORT], *.HOST or @PRESET such as @pypi, @npm, @debian, @github; repeatable. Without, nothing")
	f.StringSliceVar(&r.BuildImages, "build-image", nil, "what E2B's Template.fromImage may start from: REGISTRY/REPOSITORY, or a prefix and *; repeatable. Without, only the base")
	f.StringVar(&r.Ceilings, "ceilings", "", "file of ceilings for each door, token and label (default: /etc/pando/ceilings.yaml if it exists)")
	LimitFlags(f, &r.Limits)
	complete(c, "first-token", "read", "run", "admin", "none")
	return c
}

// endingLimit bounds how long an ending daemon may hold the lock: it gives requests two seconds
// and then finishes its writes.
const endingLimit = 30 * time.Second

// wellTimes is how often a daemon that is not ending is asked again: a signal sent by kill may
// not have arrived yet.
const wellTimes = 10

// askLimit bounds how long a daemon may take to report its state.
const askLimit = 5 * time.Second

// takeOver ends a daemon without TCP addresses, or waits for one that is ending, and returns
// when the lock is free. It fails for a daemon with TCP addresses that is not ending, and names
// them.
func (a *app) takeOver(ctx context.Context) error {
	said, stopped, well := false, 0, 0
	for began := time.Now(); a.home.Locked(); {
		d, err := a.askLocal(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && !d.Ending && len(d.Listen) > 0 && well < wellTimes:
			well++
		case err == nil && !d.Ending && len(d.Listen) > 0:
			return &api.Error{Kind: "exists", Message: fmt.Sprintf("cannot serve: daemon %d does, at %s", d.PID, strings.Join(d.Listen, ", ")), Hint: "end it first: pando daemon stop"}
		case err == nil && !d.Ending && stopped != d.PID:
			if _, err := a.localClient().StopDaemon(ctx); err == nil {
				stopped = d.PID
			}
		case !said && stopped == 0:
			said = true
			a.say("pando: waiting for %s, which is ending, to release %s", a.holder(), a.home.Lock())
		}
		if time.Since(began) > endingLimit {
			return &api.Error{Kind: "unavailable", Message: fmt.Sprintf("cannot serve: %s holds %s, and has not ended in %s", a.holder(), a.home.Lock(), endingLimit),
				Hint: "see why in " + a.home.Log() + ", or kill it; cells live on"}
		}
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Millisecond):
		}
	}
	if stopped != 0 {
		a.say("daemon %d has handed over", stopped)
	}
	return nil
}

// localClient returns a client of this installation's daemon that starts none.
func (a *app) localClient() *client.Client {
	return client.New(client.Config{Socket: a.home.Socket()})
}

// askLocal asks this installation's daemon for its state.
func (a *app) askLocal(ctx context.Context) (api.Daemon, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return a.localClient().Daemon(ctx)
}

// holder names the daemon that took the lock last.
func (a *app) holder() string {
	if pid := a.home.Holder().PID; pid != 0 {
		return fmt.Sprintf("daemon %d", pid)
	}
	return "a daemon"
}

// served prints how to connect.
func (a *app) served(s Served) error {
	err := a.print(s, func(w io.Writer) {
		url, host := s.URLs[0], s.URLs[0]
		for _, u := range s.URLs {
			fmt.Fprintf(w, "pando answers at %s\n", u)
		}
		if s.Fingerprint != "" {
			fmt.Fprintf(w, "certificate      sha256=%s\n", s.Fingerprint)
			host += "#sha256=" + s.Fingerprint
		}
		key := "pando_…"
		if s.Token != "" {
			fmt.Fprintf(w, "token            %s   (shown this once)\n", s.Token)
			key = s.Token
		} else {
			fmt.Fprintf(w, "token            the one that you have; another: pando token create\n")
		}
		fmt.Fprintf(w, "\nfor pando elsewhere:\n  export PANDO_HOST='%s' PANDO_TOKEN=%s\n", host, key)
		fmt.Fprintf(w, "\nfor programs written for E2B:\n  export E2B_API_URL=%s\n  export E2B_SANDBOX_URL=%s\n  export E2B_API_KEY=%s\n", url, url, "e2b_"+strings.TrimPrefix(key, "pando_"))
	})
	return err
}
