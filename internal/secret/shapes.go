package secret

// A shape is what tokens of one kind look like: an anchor, which is a text
// they always contain, and what must stand around it. Tokens without such a
// text (a password, a bare 40-digit key) have no shape that can be told from
// ordinary content, and none is attempted. Nor are JSON Web Tokens: tests and
// documents are full of them and most have expired.
type shape struct {
	what    string
	anchors []string
	rare    int // where the three rarest bytes of an anchor are, for the filter
	// A token is an anchor, at the beginning of a word, and then min to max
	// bytes of body that look random, max 0 meaning any number.
	body     *byteSet
	min, max int
	inside   bool // the anchor stands in the middle of a word
	named    bool // counts only in files with names that promise credentials
	// check adds to this what the format allows to verify.
	check func(body []byte) bool
	// find replaces all of this. It gets the neighbourhood and where the
	// anchor is in it, and returns where the token begins.
	find func(b []byte, at, end int) (start int, ok bool)
}

// at judges whether the anchor at b[start:] of length n belongs to a token, and
// returns where that begins.
func (s *shape) at(b []byte, start, n int) (int, bool) {
	if s.find != nil {
		return s.find(b, start, start+n)
	}
	if !s.inside && !wordStart(b, start) {
		return 0, false
	}
	body := leading(b[start+n:], s.body)
	if len(body) < s.min || (s.max > 0 && len(body) > s.max) {
		return 0, false
	}
	if !looksRandom(body) || (s.check != nil && !s.check(body)) {
		return 0, false
	}
	return start, true
}

// The alphabets of tokens.
var (
	hexDigits = newByteSet("0-9a-f")
	alnum     = newByteSet("0-9A-Za-z")
	upperNum  = newByteSet("0-9A-Z")
	alnumLine = newByteSet("0-9A-Za-z_")
	base64Std = newByteSet("0-9A-Za-z+/=")
	base64URL = newByteSet("0-9A-Za-z_--")
	base64Dot = newByteSet("0-9A-Za-z_.--")
	slashes   = newByteSet("0-9A-Za-z_/--")
	hexDash   = newByteSet("0-9a-f--")
)

// shapes are the tokens that are looked for. Lengths are those that the
// services document or issue; where they vary, the shortest seen.
var shapes = []shape{
	{what: "GitHub token", anchors: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, body: alnum, min: 36, max: 36, check: crcBase62},
	{what: "GitHub installation token", anchors: []string{"ghs_"}, body: base64Dot, min: 100, check: hasJWT},
	{what: "GitHub fine-grained token", anchors: []string{"github_pat_"}, rare: 6, body: alnumLine, min: 82, max: 82},
	{what: "GitLab token", anchors: []string{"glpat-", "gldt-", "glrt-", "glptt-", "glft-", "glsoat-", "glcbt-", "glagent-"}, body: base64Dot, min: 20, max: 320},
	{what: "Slack token", anchors: []string{"xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxc-", "xoxe-", "xapp-"}, body: base64URL, min: 32},
	{what: "Slack webhook", anchors: []string{"hooks.slack.com/services/"}, rare: 9, inside: true, body: slashes, min: 40, max: 80},
	{what: "Discord webhook", anchors: []string{"discord.com/api/webhooks/", "discordapp.com/api/webhooks/"}, rare: 13, inside: true, body: slashes, min: 80, max: 100},
	{what: "Telegram bot token", anchors: []string{":AA"}, find: findTelegram},
	{what: "Stripe live key", anchors: []string{"sk_live_", "rk_live_"}, rare: 1, body: alnum, min: 24},

	{what: "Anthropic key", anchors: []string{"sk-ant-"}, rare: 2, body: base64URL, min: 80},
	{what: "OpenAI key", anchors: []string{"sk-proj-", "sk-svcacct-", "sk-admin-"}, rare: 2, body: base64URL, min: 40},
	{what: "OpenAI key", anchors: []string{"T3BlbkFJ"}, find: findOpenAI},
	{what: "OpenRouter key", anchors: []string{"sk-or-v1-"}, rare: 5, body: hexDigits, min: 64, max: 64},
	{what: "API key", anchors: []string{"sk-"}, body: hexDigits, min: 32, max: 32}, // DeepSeek and others
	{what: "Groq key", anchors: []string{"gsk_"}, body: alnum, min: 52, max: 52},
	{what: "xAI key", anchors: []string{"xai-"}, body: alnum, min: 80, max: 80},
	{what: "Perplexity key", anchors: []string{"pplx-"}, body: alnum, min: 48, max: 48},
	{what: "Replicate token", anchors: []string{"r8_"}, body: alnum, min: 37, max: 37},
	{what: "Hugging Face token", anchors: []string{"hf_"}, body: alnum, min: 34, max: 34},
	{what: "Hugging Face token", anchors: []string{"api_org_"}, rare: 2, body: alnum, min: 34, max: 34},
	{what: "LangSmith key", anchors: []string{"lsv2_pt_", "lsv2_sk_"}, body: alnumLine, min: 43, max: 43},
	{what: "E2B key", anchors: []string{"e2b_"}, body: hexDigits, min: 40, max: 40},

	{what: "AWS access key", anchors: []string{"AKIA", "ASIA"}, find: findAWSPair},
	{what: "AWS secret key", anchors: []string{"secret_access_key", "secretAccessKey", "SecretAccessKey", "SECRET_ACCESS_KEY"}, rare: 4, find: findAWSSecret},
	{what: "Google API key", anchors: []string{"AIza"}, body: base64URL, min: 35, max: 35},
	{what: "Google OAuth client secret", anchors: []string{"GOCSPX-"}, body: base64URL, min: 28, max: 28},
	{what: "Google OAuth token", anchors: []string{"ya29."}, body: base64URL, min: 50},
	{what: "Google OAuth refresh token", anchors: []string{"1//0"}, body: base64URL, min: 40},
	{what: "Azure storage key", anchors: []string{"AccountKey="}, rare: 6, inside: true, body: base64Std, min: 88, max: 88, check: endsIn("==")},
	{what: "Azure shared access key", anchors: []string{"SharedAccessKey="}, rare: 5, body: base64Std, min: 44, max: 44, check: endsIn("=")},
	{what: "Azure client secret", anchors: []string{"0Q~", "1Q~", "2Q~", "3Q~", "4Q~", "5Q~", "6Q~", "7Q~", "8Q~", "9Q~"}, find: findAzureSecret},
	{what: "DigitalOcean token", anchors: []string{"dop_v1_", "doo_v1_", "dor_v1_"}, rare: 2, body: hexDigits, min: 64, max: 64},
	{what: "Databricks token", anchors: []string{"dapi"}, body: hexDash, min: 32, max: 34},
	{what: "Fly.io token", anchors: []string{"fm2_"}, body: base64Std, min: 100},
	{what: "Heroku key", anchors: []string{"HRKU-"}, body: base64URL, min: 36, max: 70},
	{what: "Supabase token", anchors: []string{"sbp_"}, body: hexDigits, min: 40, max: 40},
	{what: "Supabase secret key", anchors: []string{"sb_secret_"}, rare: 1, body: base64URL, min: 22},
	{what: "PlanetScale token", anchors: []string{"pscale_tkn_", "pscale_pw_"}, rare: 5, body: base64Dot, min: 32},

	{what: "npm token", anchors: []string{"npm_"}, rare: 1, body: alnum, min: 36, max: 36},
	{what: "PyPI token", anchors: []string{"pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBpLm9yZw"}, rare: 5, body: base64URL, min: 50},
	{what: "RubyGems key", anchors: []string{"rubygems_"}, rare: 6, body: hexDigits, min: 48, max: 48},
	{what: "Docker token", anchors: []string{"dckr_pat_", "dckr_oat_"}, body: base64URL, min: 27, max: 40},
	{what: "Vault token", anchors: []string{"hvs.", "hvb.", "hvr."}, body: base64URL, min: 24},
	{what: "Terraform Cloud token", anchors: []string{".atlasv1."}, rare: 5, inside: true, body: base64URL, min: 60},
	{what: "Atlassian token", anchors: []string{"ATATT3xFfGF0", "ATCTT3xFfGF0"}, rare: 4, body: base64Std.or(base64URL), min: 100},
	{what: "SendGrid key", anchors: []string{"SG."}, body: base64Dot, min: 66, max: 66, check: func(b []byte) bool { return b[22] == '.' }},
	{what: "Shopify token", anchors: []string{"shpat_", "shpca_", "shppa_", "shpss_"}, body: newByteSet("0-9A-Fa-f"), min: 32, max: 32},
	{what: "Grafana token", anchors: []string{"glsa_"}, body: alnumLine, min: 41, max: 41},
	{what: "Grafana Cloud token", anchors: []string{"glc_eyJ"}, rare: 2, body: base64Std, min: 60},
	{what: "Sentry token", anchors: []string{"sntrys_eyJ"}, body: alnumLine.or(base64Std), min: 80},
	{what: "Sentry user token", anchors: []string{"sntryu_"}, body: hexDigits, min: 64, max: 64},
	{what: "New Relic key", anchors: []string{"NRAK-"}, body: upperNum, min: 27, max: 27},
	{what: "Linear key", anchors: []string{"lin_api_"}, rare: 2, body: alnum, min: 40, max: 40},
	{what: "Notion token", anchors: []string{"ntn_"}, body: alnum, min: 46, max: 46},
	{what: "Postman key", anchors: []string{"PMAK-"}, body: hexDash, min: 59, max: 59},
	{what: "Doppler token", anchors: []string{"dp.pt.", "dp.st.", "dp.ct.", "dp.sa."}, body: alnum.or(newByteSet(".")), min: 40, max: 60},
	{what: "Tailscale key", anchors: []string{"tskey-"}, body: base64URL, min: 30},
	{what: "1Password token", anchors: []string{"ops_eyJ"}, rare: 2, body: base64Std, min: 250},

	{what: "private key", anchors: []string{"PRIVATE KEY"}, find: findPEM},
	{what: "private key", anchors: []string{"Private-Lines: "}, rare: 5, find: findPuTTY},
	{what: "private key", anchors: []string{"\x02\x01\x00\x30", "\x02\x01\x00\x02", "\x02\x01\x01\x04"}, find: findDER},
	{what: "credential", named: true, anchors: []string{"private_key", "client_secret", "refresh_token", "access_token", "auth_token", "session_token", "secret_key", "password", "api_key", "secret_access_key"}, rare: 3, find: findCredential},
	{what: "age secret key", anchors: []string{"AGE-SECRET-KEY-1", "AGE-SECRET-KEY-PQ-1"}, rare: 3, find: findAge},
}
