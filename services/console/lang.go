package console

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

//go:embed text/*.json
var texts embed.FS

// Lang is one language's text.
type Lang struct {
	Tag   string // en, zh
	words map[string]string
}

// tags of the languages; the first one is for whoever asks for none of them.
var tags = []string{"en", "zh"}

func loadLangs() (map[string]*Lang, error) {
	out := map[string]*Lang{}
	for _, tag := range tags {
		b, err := texts.ReadFile("text/" + tag + ".json")
		if err != nil {
			return nil, err
		}
		l := &Lang{Tag: tag}
		if err := json.Unmarshal(b, &l.words); err != nil {
			return nil, fmt.Errorf("text/%s.json: %w", tag, err)
		}
		out[tag] = l
	}
	return out, nil
}

// T is the text of that key, with what goes into it.
func (l *Lang) T(key string, args ...any) string {
	text, ok := l.words[key]
	if !ok {
		return key
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

const langCookie = "console_lang"

// langOf is what the request asks for: ?lang=, then the cookie, then Accept-Language.
func langOf(r *http.Request, langs map[string]*Lang) *Lang {
	if l := langs[r.URL.Query().Get("lang")]; l != nil {
		return l
	}
	if c, err := r.Cookie(langCookie); err == nil && langs[c.Value] != nil {
		return langs[c.Value]
	}
	for want := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		want, _, _ = strings.Cut(strings.TrimSpace(want), ";")
		base, _, _ := strings.Cut(strings.ToLower(want), "-")
		if l := langs[base]; l != nil {
			return l
		}
	}
	return langs[tags[0]]
}

// Span is a length of time for people.
func (l *Lang) Span(d time.Duration) string {
	switch {
	case d < time.Second:
		return l.T("span.ms", d.Milliseconds())
	case d < 2*time.Minute:
		return l.T("span.s", int(d.Seconds()))
	case d < 2*time.Hour:
		return l.T("span.min", int(d.Minutes()))
	}
	return l.T("span.h", int(d.Hours()))
}

// MS is the same of milliseconds.
func (l *Lang) MS(ms int64) string { return l.Span(time.Duration(ms) * time.Millisecond) }
