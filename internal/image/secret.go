package image

import (
	"bytes"
	"regexp"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/secret"
)

// A secretPlace is a file or directory that holds secrets, wherever it is. In nearly all
// cases that is in a home directory.
type secretPlace struct {
	name string   // its last components, in lower case
	what string   // for people
	open []string // names in it that are programs and no secrets
}

var secretPlaces = []secretPlace{
	{name: ".ssh", what: "SSH keys"},
	{name: ".gnupg", what: "GnuPG keys"},
	{name: ".password-store", what: "passwords"},
	{name: ".local/share/keyrings", what: "keyrings"},
	{name: ".local/share/kwalletd", what: "keyrings"},
	{name: ".pki", what: "certificates and keys"},
	{name: ".step", what: "certificates and keys"},
	{name: ".config/age", what: "keys"},
	{name: ".config/sops", what: "keys"},
	{name: ".config/op", what: "passwords"},
	{name: ".config/1password", what: "passwords"},
	{name: ".config/bitwarden", what: "passwords"},
	{name: ".config/keepassxc", what: "passwords"},

	{name: ".aws", what: "cloud credentials"},
	{name: ".azure", what: "cloud credentials", open: []string{"bin"}},
	{name: ".oci", what: "cloud credentials"},
	{name: ".config/gcloud", what: "cloud credentials"},
	{name: ".config/doctl", what: "cloud credentials"},
	{name: ".config/rclone", what: "cloud credentials"},
	{name: ".config/scw", what: "cloud credentials"},
	{name: ".config/hcloud", what: "cloud credentials"},
	{name: ".bluemix", what: "cloud credentials"},
	{name: ".fly", what: "cloud credentials", open: []string{"bin"}},
	{name: ".pulumi", what: "cloud credentials", open: []string{"bin"}},
	{name: ".terraform.d", what: "cloud credentials"},
	{name: ".terraformrc", what: "cloud credentials"},
	{name: ".vault-token", what: "a token"},
	{name: ".s3cfg", what: "cloud credentials"},
	{name: ".boto", what: "cloud credentials"},
	{name: ".databrickscfg", what: "cloud credentials"},
	{name: ".snowflake", what: "cloud credentials"},

	{name: ".kube", what: "cluster credentials"},
	{name: ".minikube", what: "cluster credentials"},
	{name: ".docker", what: "registry credentials", open: []string{"bin", "cli-plugins"}},
	{name: ".dockercfg", what: "registry credentials"},
	{name: ".config/containers", what: "registry credentials"},
	{name: ".config/helm", what: "registry credentials"},

	{name: ".netrc", what: "credentials"},
	{name: "_netrc", what: "credentials"},
	{name: ".git-credentials", what: "credentials"},
	{name: ".config/git", what: "credentials"},
	{name: ".config/gh", what: "a forge's token"},
	{name: ".config/glab-cli", what: "a forge's token"},
	{name: ".config/hub", what: "a forge's token"},
	{name: ".config/tea", what: "a forge's token"},
	{name: ".npmrc", what: "registry credentials"},
	{name: ".yarnrc.yml", what: "registry credentials"},
	{name: ".pypirc", what: "registry credentials"},
	{name: ".config/pypoetry", what: "registry credentials"},
	{name: ".config/pip", what: "registry credentials"},
	{name: ".condarc", what: "registry credentials"},
	{name: ".cargo/credentials", what: "registry credentials"},
	{name: ".cargo/credentials.toml", what: "registry credentials"},
	{name: ".m2/settings.xml", what: "registry credentials"},
	{name: ".m2/settings-security.xml", what: "registry credentials"},
	{name: ".gradle/gradle.properties", what: "registry credentials"},
	{name: ".gem/credentials", what: "registry credentials"},
	{name: ".local/share/gem/credentials", what: "registry credentials"},
	{name: ".bundle/config", what: "registry credentials"},
	{name: ".composer/auth.json", what: "registry credentials"},
	{name: ".config/composer/auth.json", what: "registry credentials"},
	{name: ".nuget/nuget", what: "registry credentials"},
	{name: ".hex/hex.config", what: "registry credentials"},
	{name: ".pub-cache/credentials.json", what: "registry credentials"},
	{name: ".config/dart", what: "registry credentials"},
	{name: ".cabal/config", what: "registry credentials"},
	{name: ".cache/huggingface/token", what: "a token"},
	{name: ".huggingface", what: "a token"},
	{name: ".kaggle", what: "a token"},
	{name: ".pgpass", what: "database passwords"},
	{name: ".my.cnf", what: "database passwords"},
	{name: ".mylogin.cnf", what: "database passwords"},
	{name: ".config/rstudio", what: "credentials"},
	{name: ".foundry/keystores", what: "keys"},
	{name: ".ethereum", what: "keys"},
	{name: ".bitcoin", what: "keys"},
	{name: ".dotnet/corefx", what: "keys"},

	{name: ".claude", what: "an agent's credentials", open: []string{"local"}},
	{name: ".claude.json", what: "an agent's credentials"},
	{name: ".codex", what: "an agent's credentials", open: []string{"bin"}},
	{name: ".gemini", what: "an agent's credentials"},
	{name: ".copilot", what: "an agent's credentials"},
	{name: ".config/github-copilot", what: "an agent's credentials"},
	{name: ".cursor", what: "an agent's credentials", open: []string{"bin"}},
	{name: ".local/share/opencode", what: "an agent's credentials", open: []string{"bin"}},
	{name: ".aider", what: "an agent's credentials"},

	{name: ".mozilla", what: "browser profiles"},
	{name: ".thunderbird", what: "mail"},
	{name: ".config/google-chrome", what: "browser profiles"},
	{name: ".config/chromium", what: "browser profiles"},
	{name: ".config/bravesoftware", what: "browser profiles"},
	{name: ".config/microsoft-edge", what: "browser profiles"},
	{name: ".config/vivaldi", what: "browser profiles"},
	{name: ".config/slack", what: "messages"},
	{name: ".config/discord", what: "messages"},
	{name: ".config/signal", what: "messages"},
	{name: ".config/code", what: "an editor's credentials"},
	{name: ".config/cursor", what: "an editor's credentials"},
	{name: ".config/jetbrains", what: "an editor's credentials"},
	{name: ".vscode-server", what: "an editor's sockets and credentials"},
	{name: ".local/share/atuin", what: "shell history"},
	{name: ".bash_history", what: "shell history"},
	{name: ".zsh_history", what: "shell history"},
	{name: ".python_history", what: "shell history"},
	{name: ".psql_history", what: "shell history"},
	{name: ".mysql_history", what: "shell history"},
	{name: ".node_repl_history", what: "shell history"},
	{name: ".local/share/fish/fish_history", what: "shell history"},
}

// secretIn says what secrets the real path p belongs to, "" for none.
func secretIn(p string) string {
	if !strings.Contains(p, "/.") && !strings.Contains(p, "/_") {
		return ""
	}
	low := strings.ToLower(p) + "/"
	for _, s := range secretPlaces {
		for from := 0; ; {
			n := strings.Index(low[from:], s.name)
			if n < 0 {
				break
			}
			at := from + n
			end := at + len(s.name)
			from = end
			if low[at-1] == '/' && low[end] == '/' && !s.opens(low[end+1:]) {
				return s.what
			}
		}
	}
	return ""
}

func (s secretPlace) opens(rest string) bool {
	name, _, _ := strings.Cut(rest, "/")
	for _, o := range s.open {
		if name == o {
			return true
		}
	}
	return false
}

// secretFile reports whether a file of that name is taken to be a secret: what
// an import leaves out of a workspace may not come in by a mount.
func secretFile(name string) bool {
	n := strings.ToLower(name)
	switch n {
	case ".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf", ".htpasswd",
		".vault-token", ".terraformrc", ".dockercfg", ".s3cfg", ".boto", ".secrets", "credentials.json",
		"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk":
		return true
	}
	for _, end := range []string{".kdbx", ".p12", ".pfx", ".keystore"} {
		if strings.HasSuffix(n, end) {
			return true
		}
	}
	if n == ".envrc" || n == ".env" || strings.HasPrefix(n, ".env.") {
		for _, harmless := range []string{"example", "sample", "template", "dist", "defaults", "schema"} {
			if strings.Contains(n, harmless) {
				return false
			}
		}
		return true
	}
	return false
}

// authorization is a setting of a header with its value, however short that is.
var authorization = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i:authorization: *(basic|bearer) +[a-z0-9])`)
})

var assignment = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(token|passw(or)?d|passphrase|secret|_auth|api_?-?key)[\w.-]*["']?\s*[=:]\s*["']?[^\s"']`)
})

// hasToken reports whether s holds something of the shape of a live secret: a
// known kind of token, a private key, a URL with a password, a header that authenticates.
func hasToken(s string) bool {
	if secret.InText(s) {
		return true
	}
	// The pattern costs much more than a search for the text that it contains.
	return (strings.Contains(s, "uthorization") || strings.Contains(s, "UTHORIZATION")) && authorization().MatchString(s)
}

// hasSecret is stricter, for settings: it also takes any assignment to
// something that is called a password or a token.
func hasSecret(s string) bool { return hasToken(s) || assignment().MatchString(s) }

// secretSetting is a line of configuration that gives a value to something that is called a
// secret. A comment is no better: it may be the value of yesterday.
var secretSetting = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?im)(?:token|passw(?:or)?d|passphrase|secret|_auth|_pw|api[_-]?key|access[_-]?key|credentials?)[\w.-]*["']?[ \t]*(?:[=:]|[ \t])[ \t]*["']?([^\s"',;)}\]]+)`)
})

// noSecrets are values that name no secret: a switch, a source, or a place.
var noSecrets = []string{"yes", "no", "true", "false", "on", "off", "none", "null", "nil", "ask", "prompt", "required", "requisite", "sufficient", "optional", "files", "compat", "systemd", "sss", "and", "or", "is", "for", "to", "in", "the", "a", "of", "with", "from", "=", ":", "#"}

// settingHints are what every name in secretSetting contains, in lower case.
var settingHints = []string{"token", "passw", "passphrase", "secret", "_auth", "_pw", "api", "access", "credential"}

// hasSetting reports whether a line of s gives a value to a password, a token or the like.
// Only lines with a hint are looked at closely.
func hasSetting(s string) bool {
	lower := strings.ToLower(s)
	if len(lower) != len(s) { // letters with a lower case of another length
		return hasSettingIn(s)
	}
	for _, h := range settingHints {
		for from := 0; ; {
			n := strings.Index(lower[from:], h)
			if n < 0 {
				break
			}
			from += n
			begin, end := strings.LastIndexByte(s[:from], '\n')+1, len(s)
			if n := strings.IndexByte(s[from:], '\n'); n >= 0 {
				end = from + n
			}
			if hasSettingIn(s[begin:end]) {
				return true
			}
			from = end
		}
	}
	return false
}

func hasSettingIn(s string) bool {
	for _, m := range secretSetting().FindAllStringSubmatchIndex(s, -1) {
		value, between := strings.ToLower(s[m[2]:m[3]]), s[m[0]:m[2]]
		if !strings.ContainsAny(between, "=:") && !strings.ContainsAny(value, "0123456789") {
			continue // prose
		}
		if strings.Trim(value, "0123456789.") == "" || strings.ContainsRune("/$%<{[(*-.", rune(value[0])) {
			continue // a number, a path, a variable, a placeholder
		}
		known := false
		for _, w := range noSecrets {
			known = known || value == w
		}
		if !known {
			return true
		}
	}
	return false
}

// isPrivateKey looks at the beginning of a file.
func isPrivateKey(b []byte) bool {
	return bytes.Contains(b, []byte("-----BEGIN ")) && bytes.Contains(b, []byte("PRIVATE KEY-----"))
}
