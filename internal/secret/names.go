package secret

// A nameRow is a pattern for the end of a path, in lower case, and why what
// has such a name stays out. "*" stands for anything but a slash, in the last
// component only. A pattern that ends in a slash is of folders, with all below
// them; the others are of everything but folders.
type nameRow struct {
	pattern string
	why     string
}

// nameRows are names of files or folders that hold secrets. They apply to what git does not
// track: a committed ".env" is meant to be seen. Backups of them (~, .bak, .swp …) count
// like themselves.
var nameRows = []nameRow{
	{".env", "environment file"},
	{".env.*", "environment file"}, // .env.test and .env.production too: those meant to be shared are tracked
	{".env-*", "environment file"},
	{".env_*", "environment file"},
	{".envrc", "environment file"},
	{".envrc.*", "environment file"},
	{"*.env", "environment file"},
	{".envs/", "environment files"},
	{".dev.vars", "environment file"},
	{".dev.vars.*", "environment file"},
	{"local.settings.json", "environment file"},

	{".ssh/", "SSH keys"},
	{"id_rsa*", "SSH key"},
	{"id_dsa*", "SSH key"},
	{"id_ecdsa*", "SSH key"},
	{"id_ed25519*", "SSH key"},
	{".gnupg/", "GnuPG keys"},
	{".password-store/", "passwords"},
	{".local/share/keyrings/", "passwords"},
	{".mozilla/", "browser profile"},
	{".config/google-chrome/", "browser profile"},
	{".config/chromium/", "browser profile"},
	{"playwright/.auth/", "browser sessions"},
	{"*.kdbx", "passwords"},
	{"*.p12", "key store"},
	{"*.pfx", "key store"},
	{"*.jks", "key store"},
	{"*.bks", "key store"},
	{"*.keystore", "key store"},
	{"*.keytab", "key store"},

	{".aws/", "AWS credentials"},
	{".azure/", "Azure credentials"},
	{".config/gcloud/", "Google Cloud credentials"},
	{"application_default_credentials.json", "Google Cloud credentials"},
	{".boto", "cloud credentials"},
	{".s3cfg", "cloud credentials"},
	{".passwd-s3fs", "cloud credentials"},
	{"rclone.conf", "cloud credentials"},
	{".databrickscfg", "cloud credentials"},
	{".snowflake/", "cloud credentials"},
	{".config/doctl/", "cloud credentials"},
	{".fly/config.yml", "cloud credentials"},
	{".wrangler/config/", "cloud credentials"},
	{".cloudflared/", "cloud credentials"},
	{".config/ngrok/", "cloud credentials"},
	{".ngrok2/", "cloud credentials"},
	{".modal.toml", "cloud credentials"},
	{".kube/", "Kubernetes credentials"},
	{"kubeconfig", "Kubernetes credentials"},
	{"kubeconfig.yaml", "Kubernetes credentials"},
	{"kubeconfig.yml", "Kubernetes credentials"},
	{"*.kubeconfig", "Kubernetes credentials"},
	{".docker/config.json", "registry credentials"},
	{".dockercfg", "registry credentials"},
	{".dockerconfigjson", "registry credentials"},

	{".git-credentials", "git credentials"},
	{".config/git/credentials", "git credentials"},
	{".git/credentials", "git credentials"},
	{".git/annex/creds/", "git-annex credentials"},
	{".config/gh/hosts.yml", "GitHub credentials"},
	{".config/hub", "GitHub credentials"},
	{".config/github-copilot/", "GitHub credentials"},
	{".config/glab-cli/", "GitLab credentials"},
	{".netrc", "passwords"},
	{"_netrc", "passwords"},
	{".authinfo", "passwords"},
	{".htpasswd", "passwords"},
	{".pgpass", "database password"},
	{"pgpass.conf", "database password"},
	{".my.cnf", "database password"},
	{".mylogin.cnf", "database password"},
	{".dbt/profiles.yml", "database password"},
	{".subversion/auth/", "passwords"},

	{".cargo/credentials", "package registry credentials"},
	{".cargo/credentials.toml", "package registry credentials"},
	{".gem/credentials", "package registry credentials"},
	{"auth.json", "credentials"}, // composer, agents, registries
	{"pypoetry/auth.toml", "package registry credentials"},

	{".vault-token", "Vault token"},
	{".terraformrc", "Terraform credentials"},
	{"terraform.rc", "Terraform credentials"},
	{"credentials.tfrc.json", "Terraform credentials"},
	{"*.tfvars", "Terraform variables"}, // where Terraform's documentation puts secrets
	{"*.tfvars.json", "Terraform variables"},
	{"*.tfstate", "Terraform state"}, // has every secret of what it describes, in plain text
	{"*.tfstate.*", "Terraform state"},

	{"secrets.yml", "secrets"},
	{"secrets.yaml", "secrets"},
	{"secrets.json", "secrets"},
	{"secrets.toml", "secrets"},
	{"secret.yml", "secrets"},
	{"secret.yaml", "secrets"},
	{"secret.json", "secrets"},
	{"config/master.key", "Rails key"},
	{"config/credentials/*.key", "Rails key"},

	{".claude/.credentials.json", "agent credentials"},
	{".claude.json", "agent credentials"},
	{"oauth_creds.json", "agent credentials"},
	{".kaggle/", "API credentials"},
	{"kaggle.json", "API credentials"},
	{"huggingface/token", "API credentials"},
	{".huggingface/token", "API credentials"},
	{".bash_history", "shell history"},
	{".zsh_history", "shell history"},
	{".psql_history", "shell history"},
	{".mysql_history", "shell history"},
}

// sharedRows are near those above and meant to be shared.
var sharedRows = []nameRow{
	{"*.example", "example"},
	{"*.sample", "example"},
	{"*.template", "example"},
	{"*.tmpl", "example"},
	{"*.tpl", "example"},
	{"*.dist", "example"},
	{"*.defaults", "example"},
	{"*.schema", "example"},
	{"example.env", "example"},
	{"sample.env", "example"},
	{"template.env", "example"},
	{".env.vault", "encrypted"}, // dotenv-vault; its key is in .env.keys
	{"*.pub", "public key"},
}

// contentRows are names that only promise secrets: their content decides,
// and is searched for more than other content is (see credentialField).
var contentRows = []nameRow{
	{"*.pem", "private key"},
	{"*.key", "private key"},
	{"*.der", "private key"},
	{"*.pk8", "private key"},
	{"*.p8", "private key"},
	{"*.ppk", "private key"},
	{"*.asc", "private key"},
	{"*.gpg", "private key"},
	{"*.ovpn", "private key"},
	{"credentials", "credentials"},
	{"credentials.json", "credentials"},
	{"credentials.yml", "credentials"},
	{"credentials.yaml", "credentials"},
	{"credentials.toml", "credentials"},
	{"client_secret*.json", "credentials"},
	{"service-account*.json", "credentials"},
	{"service_account*.json", "credentials"},
	{"serviceaccount*.json", "credentials"},
	{"google_accounts.json", "credentials"},
	{"token.json", "credentials"},
	{"tokens.json", "credentials"},
}

// matchName reports whether a path, split by splitFolded, has or lies below a
// name of secrets, and what is supposed to be in it.
func matchName(comps []string, isDir bool) (why string, ok bool) {
	t := tables()
	for i := range comps[:len(comps)-1] {
		if row := t.folders.find(comps[:i+1]); row != nil {
			return row.why, true
		}
	}
	if row := t.folders.find(comps); row != nil {
		return row.why, true
	}
	if isDir {
		return "", false
	}
	row := t.files.find(comps)
	if row == nil || t.shared.find(comps) != nil {
		return "", false
	}
	return row.why, true
}

// promising returns why the content of path is to be searched for more.
func promising(path string) (why string, ok bool) {
	return promisingName(components(path))
}

func promisingName(comps []string, isDir bool) (why string, ok bool) {
	if row := tables().contents.find(comps); row != nil && !isDir {
		return row.why, true
	}
	return "", false
}
