package credential

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/secret/secrettest"
)

// A placeholder begins as tokens of its kind do, or programs refuse it.
func TestPlaceholdersOfEveryKind(t *testing.T) {
	for _, k := range secrettest.Tokens(t) {
		if !k.Leads {
			continue
		}
		shape := ShapeOf(NewSecret(k.Value))
		if p := placeholder(shape); !strings.HasPrefix(p, k.Anchor) || strings.Contains(shape, k.Hidden) {
			t.Errorf("%s: %s is no placeholder for %s (%s)", k.Name(), p, k.Value, shape)
		}
	}
}

// The tokens of a service are not strange for it, and others are.
func TestStoreKnowsBeginnings(t *testing.T) {
	kinds := map[string]string{
		"anthropic": "Anthropic key", "openai": "OpenAI key", "openrouter": "OpenRouter key", "gemini": "Google API key", "github": "GitHub token",
		"gitlab": "GitLab token", "npm": "npm token", "pypi": "PyPI token", "huggingface": "Hugging Face token", "google": "Google OAuth token",
	}
	for _, name := range KnownNames() {
		if name == "crates" || name == "chatgpt" { // older ones are of any letters, and JSON Web Tokens are of many services
			continue
		}
		seen := false
		for _, k := range secrettest.Tokens(t) {
			problems := suspect(name, k.Value)
			if seen = seen || k.Kind == kinds[name]; k.Kind == kinds[name] && len(problems) > 0 {
				t.Errorf("%s of %s is strange: %v", k.Value, name, problems)
			}
		}
		if !seen || len(suspect(name, "something-else")) == 0 {
			t.Errorf("nothing is known of the tokens of %s", name)
		}
	}
}
