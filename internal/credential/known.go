package credential

import (
	"slices"
	"sort"
	"strings"
	"sync"
)

// known is a service that needs no --for and no --as.
type known struct {
	forms []form // the value has the prefix of the first that fits; the last has none
	also  []Use
}

// form is one kind of secret of a service.
type form struct {
	prefix string
	hosts  []string // each may have a method before it and a path after it; all of them without
	as     string
	env    []string
	claims bool // programs read the claims in it
}

const bearer = "Authorization: Bearer {secret}"

var services = sync.OnceValue(func() map[string]known {
	one := func(as string, hosts []string, env ...string) known {
		return known{forms: []form{{hosts: hosts, as: as, env: env}}}
	}
	return map[string]known{
		"anthropic": {forms: []form{
			// What `claude setup-token` prints.
			{prefix: "sk-ant-oat", hosts: []string{"api.anthropic.com"}, as: bearer, env: []string{"CLAUDE_CODE_OAUTH_TOKEN"}},
			{hosts: []string{"api.anthropic.com"}, as: "x-api-key: {secret}", env: []string{"ANTHROPIC_API_KEY"}},
		}},
		// The token is good for all of an account's: conversations, tasks in the cloud. This is what Codex
		// asks for its own work.
		"chatgpt": {forms: []form{{
			hosts: []string{"chatgpt.com/backend-api/codex/**", "GET chatgpt.com/backend-api/wham/accounts/check",
				"GET chatgpt.com/backend-api/wham/rate-limit-reset-credits", "GET chatgpt.com/backend-api/wham/settings/user", "GET chatgpt.com/backend-api/wham/usage"},
			as: bearer, env: []string{"CHATGPT_ACCESS_TOKEN"}, claims: true,
		}}},
		"openai":     one(bearer, []string{"api.openai.com"}, "OPENAI_API_KEY"),
		"openrouter": one(bearer, []string{"openrouter.ai"}, "OPENROUTER_API_KEY"),
		"gemini":     one("x-goog-api-key: {secret}", []string{"generativelanguage.googleapis.com"}, "GEMINI_API_KEY", "GOOGLE_API_KEY"),
		// An account's token is good for Google's cloud, too. This is what Gemini CLI asks.
		"google": one(bearer, append(codeAssist(), "GET www.googleapis.com/oauth2/v2/userinfo"), "GOOGLE_CLOUD_ACCESS_TOKEN"),
		"github": {
			forms: []form{{hosts: []string{"api.github.com", "uploads.github.com"}, as: bearer, env: []string{"GH_TOKEN", "GITHUB_TOKEN"}}},
			also:  []Use{{places("github.com"), "Authorization: Basic {basic:x-access-token}"}}, // git over https
		},
		"gitlab": {
			forms: []form{{hosts: []string{"gitlab.com"}, as: "PRIVATE-TOKEN: {secret}", env: []string{"GITLAB_TOKEN"}}},
		},
		"npm":         one(bearer, []string{"registry.npmjs.org"}, "NPM_TOKEN", "NODE_AUTH_TOKEN"),
		"pypi":        one("Authorization: Basic {basic:__token__}", []string{"upload.pypi.org"}, "TWINE_PASSWORD", "UV_PUBLISH_TOKEN"),
		"crates":      one("Authorization: {secret}", []string{"crates.io"}, "CARGO_REGISTRY_TOKEN"),
		"huggingface": one(bearer, []string{"huggingface.co"}, "HF_TOKEN"),
	}
})

// codeAssist are the places of Google's service that Gemini CLI asks for models, and for what of it an
// account may use. The same host changes settings of the account.
func codeAssist() (list []string) {
	const host = "cloudcode-pa.googleapis.com"
	for _, method := range []string{"countTokens", "fetchAdminControls", "generateContent", "listExperiments", "loadCodeAssist", "onboardUser", "recordCodeAssistMetrics", "retrieveUserQuota", "streamGenerateContent"} {
		list = append(list, "POST "+host+"/v1internal:"+method)
	}
	return append(list, "GET "+host+"/v1internal:getCodeAssistGlobalUserSetting", "GET "+host+"/v1internal/operations/*")
}

func places(hosts ...string) (list []string) {
	for _, h := range hosts {
		if !strings.Contains(h, "/") {
			h += "/**"
		}
		method, at, ok := strings.Cut(h, " ")
		if !ok {
			method, at = "", h
		}
		list = append(list, strings.TrimSpace(method+" https://"+at))
	}
	return list
}

// WellKnown returns what a service's credential is for. What depends on the
// value (Anthropic has two kinds) is as for the most usual one, and Env has
// the variables of all.
func WellKnown(name string) (Credential, bool) {
	k, ok := services()[name]
	if !ok {
		return Credential{}, false
	}
	c := k.fit(name, "")
	for _, f := range k.forms {
		for _, v := range f.env {
			if !slices.Contains(c.Env, v) {
				c.Env = append(c.Env, v)
			}
		}
	}
	return c, true
}

// KnownNames lists the services that WellKnown knows.
func KnownNames() (names []string) {
	for n := range services() {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (k known) fit(name, value string) Credential {
	for _, f := range k.forms {
		if strings.HasPrefix(value, f.prefix) {
			return Credential{Name: name, Kind: Token, For: places(f.hosts...), As: f.as, Env: slices.Clone(f.env), Also: slices.Clone(k.also)}
		}
	}
	return Credential{Name: name, Kind: Token}
}

// hasClaims reports whether programs read the claims in the value of a credential.
func (c Credential) hasClaims() bool {
	return slices.ContainsFunc(services()[c.Name].forms, func(f form) bool { return f.claims && slices.Equal(c.Env, f.env) })
}

// readClaims returns the claims of a value, where programs read them in it.
func (c Credential) readClaims(value string) (claims map[string]any) {
	if c.hasClaims() {
		claims, _ = Claims(value)
	}
	return claims
}

// Complete fills in the missing settings of a credential of a well-known service. A
// credential with explicit destinations is not completed.
func Complete(c Credential, value Secret) Credential {
	k, ok := services()[c.Name]
	if !ok || c.Kind != Token {
		return c
	}
	fit := k.fit(c.Name, value.Reveal())
	if len(c.For) == 0 {
		c.For, c.Also = fit.For, fit.Also
		if c.As != "" {
			c.Also = nil
		}
	}
	if c.As == "" {
		c.As = fit.As
	}
	if len(c.Env) == 0 {
		c.Env = fit.Env
	}
	return c
}
