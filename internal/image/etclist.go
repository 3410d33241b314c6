package image

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/glob"
)

// A cell sees the files of the host's /etc that all users may read or that belong to root,
// except secrets by name (etcNever), by place (etcHost) or by content (holdsSecret).
// docs/howto/images.md has the table with the reason of each.

// etcHost are names directly in /etc that no cell sees, as patterns in which * is any text.
// They identify the host, its users and its connections, configure its services, or would
// make programs in the cell behave as if they ran on the host.
var etcHost = []string{
	// Users and their rights. passwd, group and nsswitch.conf are the cell's own.
	"passwd*", "group*", "shadow*", "gshadow*", "subuid*", "subgid*", "sudo*", "doas*", "login.access", "security", "pam.d", "pam.conf", "polkit-1", "opiekeys", "ftpusers",
	// Which host it is. hosts, hostname, machine-id, resolv.conf and environment are the cell's own.
	"machine-id", "hostname", "hosts*", "resolv*", "mailname", "hostid", "adjtime", "motd*", "issue*", "machine-info", "cloud", "ec2*", "landscape", "ubuntu-advantage", "insights-client", "rhsm", "salt", "puppet*", "chef", "ansible",
	// Its disks.
	"fstab*", "crypttab*", "mtab", "exports*", "auto.*", "autofs*", "mdadm*", "lvm", "multipath*", "iscsi", "cifs*", "smb*", "samba", "zfs", "blkid*", "davfs2",
	// Its networks.
	"network", "netplan", "NetworkManager", "wpa_supplicant*", "wireguard", "openvpn", "ipsec*", "strongswan*", "swanctl", "ppp", "chatscripts", "wvdial.conf", "dhcp*", "dhclient*", "resolvconf", "iptables*", "nftables*", "ufw", "firewalld", "tailscale", "cni", "bluetooth", "hostapd", "dnsmasq*", "bind", "unbound", "iwd", "tor",
	// Keys, and where it is trusted or known.
	"ssh", "krb5*", "kerberos", "ldap*", "openldap", "sssd", "nslcd*", "libnss-ldap*", "pam_ldap*", "ipa", "realmd.conf", "letsencrypt", "acme*", "gnupg", "pki-tls", "duo", "yubico", "tpm*", "vault*", "consul*", "nomad*",
	// Its services, and their passwords.
	"kubernetes", "rancher", "k3s", "docker", "containers", "containerd", "crio", "podman", "libvirt", "lxc", "lxd", "incus", "xen", "qemu", "qemu-if*",
	"postfix", "exim*", "sendmail*", "mail", "aliases*", "dovecot", "msmtprc", "nullmailer", "ssmtp", "cups", "freeradius", "raddb", "mosquitto", "rabbitmq", "grafana*", "prometheus", "zabbix", "nagios*", "icinga*", "telegraf", "datadog*", "newrelic*", "gitlab*", "gitea", "jenkins*", "snmp", "munin", "backup*", "borg*", "restic*", "rclone*", "duplicity", "rsyncd*", "amavis", "bacula",
	"systemd", "init", "init.d", "init.conf", "rc*.d", "runit", "sv", "inittab", "cron*", "anacron*", "at.allow", "at.deny", "logrotate*", "logcheck", "rsyslog*", "syslog*", "audit", "audisp", "dbus-1", "udev", "tmpfiles.d", "binfmt.d", "supervisor", "monit", "fail2ban", "apache2", "httpd", "nginx", "lighttpd", "caddy", "haproxy", "squid", "varnish",
	// Its kernel and how it starts.
	"modprobe.d", "modules", "modules-load.d", "sysctl.*", "kernel*", "initramfs*", "dracut*", "mkinitcpio*", "grub*", "default-grub", "apparmor*", "selinux", "update-motd.d", "kdump*",
	// What every program or shell would load or run at its start.
	"ld.so.preload", "environment*", "profile.d", "skel", "rc.local",
}

// etcOwn are names that a cell has of its own, with the host's left out.
var etcOwn = []string{"passwd", "group", "nsswitch.conf", "hosts", "hostname", "machine-id", "resolv.conf", "environment", "profile"}

// etcParts are the only parts that are taken of some directories: the rest of them is
// where keys are.
var etcParts = map[string][]string{
	"ssl":     {"certs", "cert.pem", "openssl.cnf", "ct_log_list.cnf"},
	"pki":     {"tls", "ca-trust", "java", "nssdb", "fwupd", "fwupd-metadata", "rpm-gpg"},
	"pki/tls": {"certs", "cert.pem", "openssl.cnf", "openssl.d", "ct_log_list.cnf"},
}

// etcNever is left out in every folder, in lower case: secrets by name, and old copies of
// files, which no program reads.
var etcNever = []string{
	"private", "shadow", "gshadow", "*.key", "*password*", "*passwd*", "*credential*", "*secret*", "*token*", "auth.conf*", "auth.json", "*.keytab", "*.jks", "*.nmconnection", "*.ovpn",
	"netrc", "htpasswd*", "htdigest*", "pgpass*", "my.cnf.d-", "kubeconfig*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*", "*-", "*~", "*.dpkg-old", "*.dpkg-dist", "*.rpmsave", "*.bak", "*.orig",
	".git",
}

// etcNames are the configuration of programs in which a setting that is called a password
// is none: what is looked for in them is the shape of a token alone.
var etcNames = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "pki", "ca-certificates", "ca-certificates.conf", "crypto-policies",
	"gai.conf", "host.conf", "protocols", "services", "networks", "rpc", "ethertypes", "os-release", "lsb-release", "*-release", "debian_version", "timezone", "localtime",
	"locale.alias", "locale.conf", "locale.gen", "inputrc", "terminfo", "DIR_COLORS", "shells", "nanorc", "vim", "alternatives", "mime.types", "magic", "magic.mime",
	"java", "java-*", "maven", "python*", "perl", "php", "R", "octave", "mono", "dotnet", "ghc", "erlang", "texmf", "emscripten",
	"ImageMagick*", "ghostscript", "fonts", "glvnd", "OpenCL", "vulkan", "xml", "sgml", "groff", "debuginfod", "login.defs", "papersize",
}

// etcAllows reports whether a file of the name rel (relative to /etc, clean) may be in a
// cell; its content may still be a secret.
func etcAllows(rel string) bool {
	top, _, _ := strings.Cut(rel, "/")
	if matchAny(etcHost, top) || matchAny(etcOwn, top) {
		return false
	}
	for dir := rel; dir != "."; dir = path.Dir(dir) {
		name := path.Base(dir)
		if matchAny(etcNever, strings.ToLower(name)) && !isTokenizer(name) || secretFile(name) {
			return false
		}
		if parts, ok := etcParts[path.Dir(dir)]; ok && !matchAny(parts, name) {
			return false
		}
	}
	return true
}

// isTokenizer excepts what splits text into tokens from what is called a token.
func isTokenizer(name string) bool { return strings.Contains(strings.ToLower(name), "tokenizer") }

// etcShows reports whether the cell sees the host's file at the path, by its name.
func etcShows(at string) bool {
	return at == "/etc" || strings.HasPrefix(at, "/etc/") && etcAllows(at[len("/etc/"):])
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if glob.Match(p, name) {
			return true
		}
	}
	return false
}
