package finding

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
)

// tunnels are services that carry connections or what is sent to them to third parties, as names and the ends of names.
var tunnels = []string{"ngrok.io", "ngrok.app", "ngrok-free.app", "ngrok.dev", "trycloudflare.com", "serveo.net", "localhost.run", "lhr.life", "localtunnel.me", "loca.lt", "pagekite.me", "pinggy.io", "bore.pub",
	"webhook.site", "requestbin.com", "requestbin.net", "pipedream.net", "beeceptor.com", "interact.sh", "oast.fun", "oast.pro", "oast.live", "oast.site", "oast.online", "oast.me", "burpcollaborator.net", "oastify.com",
	"dnslog.cn", "ceye.io", "transfer.sh", "file.io", "0x0.st", "termbin.com", "pastebin.com", "paste.ee", "hastebin.com", "tailscale.com", "zerotier.com", "onion", "dnsbin.zhack.ca"}

// hostOf is the host in what was wanted: "POST https://HOST/path", "resolve HOST", "connect HOST:443".
func hostOf(want string) string {
	words := strings.Fields(want)
	if len(words) == 0 {
		return want
	}
	at := words[len(words)-1]
	if u, err := url.Parse(at); err == nil && u.Host != "" {
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(at); err == nil {
		return host
	}
	return at
}

func isTunnel(host string) bool {
	return slices.ContainsFunc(tunnels, func(t string) bool { return host == t || strings.HasSuffix(host, "."+t) })
}

// longLabel is from which length on a part of a name carries data, and none of ours.
const longLabel = 40

func tunnel(e *Evidence, f *found) {
	if e.Run.Network == nil {
		return
	}
	said := map[string]bool{}
	look := func(host, what string) {
		host = strings.TrimSuffix(strings.ToLower(host), ".")
		if said[host] {
			return
		}
		for _, label := range strings.Split(host, ".") {
			if len(label) >= longLabel && !strings.HasPrefix(label, "xn--") {
				said[host] = true
				f.say("%s %s: a part of the name has %d characters", what, clip(host), len(label))
				return
			}
		}
		if isTunnel(host) {
			said[host] = true
			f.say("%s %s", what, host)
		}
	}
	for _, d := range e.Run.Network.Denials {
		look(hostOf(d.Want), "denied:")
	}
	for _, p := range e.Run.Network.Peers {
		look(p.Host, "reached:")
	}
}

// oftenDenied is from which count on a host was asked for many times.
const oftenDenied = 10

func denials(e *Evidence) (hosts []string, times map[string]int) {
	times = map[string]int{}
	if e.Run.Network == nil {
		return nil, times
	}
	for _, d := range e.Run.Network.Denials {
		host := hostOf(d.Want)
		if times[host] == 0 {
			hosts = append(hosts, host)
		}
		times[host] += max(1, int(d.Times))
	}
	return hosts, times
}

func deniedRepeated(e *Evidence, f *found) {
	hosts, times := denials(e)
	for _, h := range hosts {
		if n := times[h]; n >= oftenDenied {
			f.say("%s, %s", h, count(n, "time", "times"))
		}
	}
}

func denied(e *Evidence, f *found) {
	hosts, times := denials(e)
	for _, h := range hosts {
		if n := times[h]; n < oftenDenied {
			f.say("%s, %s", h, count(n, "time", "times"))
		}
	}
}

// claims are how tools say that all is well, at the end of what they write.
var claims = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:ok\s+\S+\s+[\d.]+s|PASS|=+ \d+ passed[^=]*=+|Tests:\s+\d+ passed, \d+ total|\s*\d+ passing\b.*|test result: ok\..*|BUILD SUCCESS\w*|OK \(\d+ tests?[^)]*\)|All tests passed!?|All checks passed!?)\s*$`)
})

// deniesClaims is what the same tools write where something failed.
var deniesClaims = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?mi)^(?:FAIL\b|--- FAIL|=+ .*failed|Tests:.*failed|\s*\d+ failing|test result: FAILED|BUILD FAIL|FAILED)`)
})

var ownWords = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:pando: (?:verified|applied|checked)|verified: \d+ receipt|r-[0-9a-f]{16} ok\b).*$`)
})

func verdictImitated(e *Evidence, f *found) {
	for _, out := range []struct{ name, text string }{{"stdout", e.Stdout}, {"stderr", e.Stderr}} {
		if l := ownWords().FindString(out.text); l != "" {
			f.say("%s has a line as pando writes: %q", out.name, clip(l))
		}
		claim := claims().FindString(out.text)
		if claim == "" || deniesClaims().MatchString(e.Stdout) || deniesClaims().MatchString(e.Stderr) {
			continue
		}
		claim = clip(strings.TrimSpace(claim))
		switch r := e.Run; {
		case r.ExitCode != nil && *r.ExitCode != 0:
			f.say("%s says %q, and the exit code is %d", out.name, claim, *r.ExitCode)
		case r.Check != nil && r.Check.ExitCode != 0:
			f.say("%s says %q, and the check ended with exit code %d", out.name, claim, r.Check.ExitCode)
		}
	}
}

// hiding are the control sequences after which text is not seen: concealed, or written over. Those that programs draw
// progress with (a line that is erased, and written again) are not among them.
var hiding = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("\x1b\\[(?:[0-9;]*;)?8m|\x1b\\][0-9]*;[^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b\\[[0-9;]*[tp]")
})

func outputHides(e *Evidence, f *found) {
	if e.Run.TTY {
		return // programs with a screen set titles
	}
	for _, out := range []struct{ name, text string }{{"stdout", e.Stdout}, {"stderr", e.Stderr}} {
		if l := hiding().FindString(out.text); l != "" {
			f.say("%s has %q", out.name, clip(l))
		}
	}
}

func secretFound(e *Evidence, f *found) {
	if e.Run.Secrets == nil {
		return
	}
	for _, s := range e.Run.Secrets.Found {
		f.at(s.Path, 0, "%s in %s, %s", s.Credential, s.In, s.Encoding)
	}
}

func notIsolated(e *Evidence, f *found) {
	if e.Run.Isolation == "not isolated" {
		f.say("backend %s", e.Run.Backend)
	}
}

func weaker(e *Evidence, f *found) {
	for _, w := range e.Run.DowngradeWords {
		if w != "root-writable" { // the default of images
			f.say("%s", w)
		}
	}
}

func limitReached(e *Evidence, f *found) {
	r := e.Run
	if strings.Contains(r.Cause, "limit") || r.Cause == "timeout" {
		f.say("the command ended by it: %s", r.Cause)
	}
	if r.Usage.OOMKills > 0 && r.Cause == "" {
		f.say("%s killed at the limit of memory", count(int(r.Usage.OOMKills), "process", "processes"))
	}
	if r.Check != nil && r.Check.Cause != "" {
		f.say("the check ended by it: %s", r.Check.Cause)
	}
}

func processLeft(e *Evidence, f *found) {
	if n := e.Run.Usage.LeftOver; n > 0 {
		f.say("%s", count(n, "process", "processes"))
	}
}

func outputIncomplete(e *Evidence, f *found) {
	o := e.Run.Output
	for i, s := range []api.Output1{o.Stdout, o.Stderr} {
		if s.Kept < s.Bytes {
			f.say("%s: %d of %d bytes", []string{"stdout", "stderr"}[i], s.Kept, s.Bytes)
		}
	}
}

func sourceMoved(e *Evidence, f *found) {
	for _, p := range e.Run.Conflicts {
		f.at(p, 0, "the source has something else there: accept refuses it")
	}
}

// The rules on what judges a result.
const (
	PinnedChanged = "pinned-changed"
	CheckChanged  = "check-changed"
)

func pinnedChanged(e *Evidence, f *found) {
	c := e.Run.Check
	if c == nil {
		return
	}
	for _, p := range c.Restored {
		f.at(p, 0, "the check had it as it was before the run; the result has what the run made of it")
	}
	if len(f.list) > 0 {
		f.more += c.RestoredMore
	}
}

func checkChanged(e *Evidence, f *found) {
	if c := e.Run.Check; c != nil {
		for _, p := range c.Changed {
			f.at(p, 0, "the check runs it, as the run had changed it")
		}
	}
}

func noCheck(e *Evidence, f *found) {
	if r := e.Run; r.Check == nil && r.Changes.Files > 0 {
		f.say("%s changed", count(r.Changes.Files, "file", "files"))
	}
}

func networkTried(e *Evidence, f *found) {
	if n := e.Run.Network; n != nil && n.Tried > 0 {
		f.say("%s had nowhere to go", count(int(n.Tried), "packet", "packets"))
	}
}

func policyUnread(e *Evidence, f *found) {
	if e.Unread != "" {
		f.say("%s", clip(e.Unread))
	}
}
