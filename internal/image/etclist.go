package image

import (
	"path"
	"strings"
)

// etcNames are the names directly in /etc that a cell has, as patterns of
// path.Match: the host's, or ours of the same name. What is not listed is not
// there. Left out on purpose: accounts' secrets (shadow, gshadow, sudoers),
// keys (ssh, ssl/private), what may hold tokens or passwords (environment,
// profile.d, gitconfig, npmrc, pip.conf, apt, fstab, krb5), and what would
// identify the host (machine-id, hosts, hostname, resolv.conf: a cell has its
// own).
var etcNames = []string{
	// the dynamic linker
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	// certificates; of ssl and pki only the parts in etcParts
	"ssl", "pki", "ca-certificates", "ca-certificates.conf", "crypto-policies",
	// names and numbers of the network
	"gai.conf", "host.conf", "protocols", "services", "networks", "rpc", "ethertypes",
	// which system this is
	"os-release", "lsb-release", "*-release", "debian_version", "alpine-release", "timezone", "localtime",
	"locale.alias", "locale.conf", "locale.gen", "default",
	// shells and terminals
	"bash.bashrc", "bashrc", "inputrc", "terminfo", "DIR_COLORS", "shells", "nanorc", "vim",
	// which program stands behind a name
	"alternatives",
	// files' types
	"mime.types", "magic", "magic.mime",
	// languages and libraries
	"java", "java-*", "maven", "python*", "perl", "php", "R", "octave", "mono", "dotnet", "ghc", "erlang", "texmf", "emscripten",
	"ImageMagick*", "ghostscript", "fonts", "glvnd", "OpenCL", "vulkan", "xml", "sgml", "xdg", "groff", "debuginfod",
	"login.defs", "papersize",
}

// etcParts are the only parts that are taken of some directories.
var etcParts = map[string][]string{
	"ssl":     {"certs", "cert.pem", "openssl.cnf", "ct_log_list.cnf"},
	"pki":     {"tls", "ca-trust", "java", "nssdb"},
	"pki/tls": {"certs", "cert.pem", "openssl.cnf", "openssl.d", "ct_log_list.cnf"},
	"default": {"locale", "cacerts", "nss"},
	"xdg":     {"user-dirs.conf", "user-dirs.defaults"},
}

// etcNever is left out wherever it turns up.
var etcNever = []string{"private", "shadow", "gshadow", "*.key", "*password*", "*credential*", "*secret*"}

// etcAllows reports whether the name rel (relative to /etc, clean) belongs
// into a cell.
func etcAllows(rel string) bool {
	top, _, _ := strings.Cut(rel, "/")
	if !matchAny(etcNames, top) {
		return false
	}
	for dir := rel; dir != "."; dir = path.Dir(dir) {
		if matchAny(etcNever, strings.ToLower(path.Base(dir))) {
			return false
		}
		if parts, ok := etcParts[path.Dir(dir)]; ok && !matchAny(parts, path.Base(dir)) {
			return false
		}
	}
	return true
}

// etcShows reports whether the cell sees the host's file at the path.
func etcShows(at string) bool {
	return at == "/etc" || strings.HasPrefix(at, "/etc/") && etcAllows(at[len("/etc/"):])
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}
