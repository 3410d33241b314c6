package gateway

import (
	"regexp"
	"strings"
	"sync"
)

// This file recognises authentication: the names of headers, parameters and cookies that carry
// it. What tokens look like, package secret knows.

// plainName returns a name without case, separators and final digits: X-Api-Key, x_api_key and
// apiKey2 are one name for some servers. The suffix -bin marks binary metadata in gRPC.
func plainName(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), "-bin")
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, name)
	return strings.TrimRight(name, "0123456789")
}

// authNames are names of authentication that no rule of authName covers.
var authNames = set("key", "token", "pass", "pwd", "sig", "sid", "login", "ticket", "session", "sessionid", "awsaccesskeyid", "ossaccesskeyid", "googleaccessid",
	"keypairid", "remoteuser", "xremoteuser", "xforwardeduser", "xforwardedclientcert", "xclientcert", "xjfrogartapi", "xhoneycombteam", "clientassertion", "xamzalgorithm", "sharedkeylite")

// harmlessNames are exceptions from the rules of authName.
var harmlessNames = set("authority", "npmauthtype", "npmsession", "mcpsessionid", "vscodesessionid", "anthropicdangerousdirectbrowseraccess", "acceptsignature",
	"cookieenabled", "npmotp", "tokens", "maxtokens")

var (
	authParts = []string{"apikey", "secret", "passw", "passphrase", "credential", "signature", "jwt", "bearer", "accesskey", "privatekey", "sharedaccess", "cookie", "dpop", "sessiontoken", "macaroon", "biscuit", "assertion"}
	// Names with these endings are authentication, unless the part before marks a key or a token
	// of another kind.
	authEnds      = []string{"token", "key", "sig", "pwd", "sessionid", "session"}
	harmlessKinds = []string{"idempotency", "websocket", "surrogate", "cache", "partition", "primary", "foreign", "public", "sort", "order", "start", "end", "range", "hash", "row", "object", "shard", "routing", "dedup",
		"page", "next", "prev", "previous", "continuation", "continue", "sync", "cursor", "resume", "skip", "csrf", "xsrf", "max", "min"}
)

// authName reports whether a header, a parameter of a query or a cookie of this
// name carries authentication.
func authName(name string) bool {
	n := plainName(name)
	if harmlessNames[n] {
		return false
	}
	if authNames[n] {
		return true
	}
	for rest, ok := n, true; ok; {
		if _, rest, ok = strings.Cut(rest, "auth"); ok && (!strings.HasPrefix(rest, "or") || strings.HasPrefix(rest, "oriz")) {
			return true // and not "author"
		}
	}
	for _, p := range authParts {
		if strings.Contains(n, p) {
			return true
		}
	}
	for _, e := range authEnds {
		kind, ok := strings.CutSuffix(n, e)
		if !ok {
			continue
		}
		harmless := false
		for _, k := range harmlessKinds {
			harmless = harmless || strings.HasSuffix(kind, k)
		}
		return !harmless
	}
	return false
}

// isLabel reports whether a session is a mere label: agents number their conversations by
// UUIDs, and opencode by ses_ with 12 hexadecimal digits and 14 letters or digits.
func isLabel(name, value string) bool {
	n := plainName(name)
	return (strings.HasSuffix(n, "sessionid") || strings.HasSuffix(n, "session") || strings.HasSuffix(n, "sessionaffinity")) && labelShape().MatchString(value)
}

// shape is a regular expression that is compiled on first use, since every pando process pays
// for package initialisation.
func shape(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	labelShape = shape(`^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|ses_[0-9a-f]{12}[0-9A-Za-z]{14})$`)
	letters    = shape(`[A-Za-z]`)
	digits     = shape(`[0-9]`)
	longRun    = shape(`[A-Za-z0-9]{20,}`)
)

// looksRandom reports whether a text has a run of 20 or more letters and digits, as tokens have.
func looksRandom(text string) bool {
	for _, run := range longRun().FindAllString(text, -1) {
		if letters().MatchString(run) && digits().MatchString(run) {
			return true
		}
	}
	return false
}

// mayBeRandom reports whether headers of this name have random values that are no keys: ids of
// requests and traces, digests, user agents.
func mayBeRandom(name string) bool {
	n := plainName(name)
	if n == "b" || harmlessNames[n] { // b3, of Zipkin
		return true
	}
	for _, end := range []string{"id", "agent", "trace", "traceparent", "tracestate", "baggage", "span", "nonce", "hash", "sha", "digest", "checksum", "match", "version", "metadata", "url", "uri", "language", "encoding", "type", "range", "origin", "referer", "location", "date", "key"} {
		if strings.HasSuffix(n, end) {
			return true
		}
	}
	for _, begin := range []string{"contentmd", "xamzcontentsha", "xstainless", "anthropic", "openai", "xcodex", "xgoogapiclient", "xgoogrequest", "gitprotocol", "uploadmetadata", "etag"} {
		if strings.HasPrefix(n, begin) {
			return true
		}
	}
	return false
}

// edgeCookies are cookies by which balancers and filters before a host tell clients apart. They
// identify no account.
var edgeCookies = set("__cf_bm", "_cfuvid", "cf_clearance", "__cflb", "__cfruid", "AWSALB", "AWSALBCORS", "AWSALBTG", "AWSALBTGCORS", "GCLB", "ARRAffinity", "ARRAffinitySameSite")

// authSchemes are the words that may stand before a placeholder.
var authSchemes = set("bearer", "token", "basic", "oauth", "oauth2", "key", "apikey", "api-key", "bot", "ssws", "geniekey", "googlelogin", "splunk", "private-token", "pat")

// passwordUsers are user names that git and registries send with a token.
var passwordUsers = set("", "x-access-token", "x-token-auth", "oauth2", "oauth", "git", "token", "_token", "__token__", "x-oauth-basic", "gitlab-ci-token", "_json_key", "api", "apikey", "pat")

func set(list ...string) map[string]bool {
	out := make(map[string]bool, len(list))
	for _, s := range list {
		out[s] = true
	}
	return out
}
