package storefront

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sets are the words that are chosen by what the API says: prefix, and which names
// it may say.
var sets = map[string][]string{
	"sort":          {"relevance", "newest", "price", "-price"},
	"orderstate":    {"PENDING", "RESERVED", "PAID", "SHIPPED", "COMPLETED", "CANCELLED", "REFUNDED"},
	"payment":       {"NONE", "FROZEN", "PAID", "RETURNED"},
	"part":          {"ASKED", "RESERVED", "REFUSED", "CONFIRMED", "ENDED", "RELEASED"},
	"reason":        {"OUT_OF_STOCK", "INSUFFICIENT_FUNDS", "HOLD_ENDED", "CANCELLED_BY_USER", "TIMED_OUT"},
	"transferstate": {"FROZEN", "CANCELLING", "SETTLED", "REVERSED", "REJECTED", "CREDITED", "REFUSED", "CANCELLED", "REFUND"},
	"direction":     {"out", "in"},
	"kind":          {"transfer", "order", "refund"},
	"side":          {"payer", "payee"},
	"step":          {"freeze", "settle", "reverse", "credit", "deposit", "withdraw", "unfreeze"},
	"stock":         {"out", "few", "plenty", "unknown"},
	"category":      {"electronics", "home", "fashion", "beauty", "sports", "toys", "books", "food", "title"},
	"event": {"hold_reserved", "hold_refused", "hold_confirmed", "hold_ended", "hold_released", "money_declined",
		"PENDING", "RESERVED", "PAID", "SHIPPED", "COMPLETED", "CANCELLED", "REFUNDED"},
}

func TestLanguagesHaveTheSameWords(t *testing.T) {
	t.Parallel()
	all, err := readWords()
	if err != nil {
		t.Fatal(err)
	}
	verbs := regexp.MustCompile(`%[a-z%]`)
	en := all["en"]
	for lang, w := range all {
		for key, text := range w {
			if en[key] == "" || strings.TrimSpace(text) != text || text == "" {
				t.Errorf("%s: %s is %q, in English %q", lang, key, text, en[key])
			}
			if a, b := verbs.FindAllString(text, -1), verbs.FindAllString(en[key], -1); !slices.Equal(a, b) {
				t.Errorf("%s: %s puts in %v, in English %v", lang, key, a, b)
			}
		}
		for key := range en {
			if w[key] == "" {
				t.Errorf("%s has no %s", lang, key)
			}
		}
	}
	if han := regexp.MustCompile(`\p{Han}`); len(en) < 100 || !han.MatchString(all["zh-Hans"]["home.title"]) {
		t.Errorf("%d words; this test looks in the wrong place", len(en))
	}
}

// Each word is used, and each that is used is there. The words for refusals are of
// codes that docs/errors.md knows.
func TestWordsAreThoseThatAreUsed(t *testing.T) {
	t.Parallel()
	all, err := readWords()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{"lang.name": true}
	for set, names := range sets {
		for _, n := range names {
			used[set+"."+n] = true
		}
	}
	key := regexp.MustCompile(`"([a-z]+\.[a-zA-Z_]+)"`)
	inTemplates := regexp.MustCompile(`\.T "([^"]+)"`)
	err = fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, "_test.go") || !strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, ".html") {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for _, m := range inTemplates.FindAllSubmatch(text, -1) {
			used[string(m[1])] = true
			if all["en"][string(m[1])] == "" {
				t.Errorf("%s uses %s, which has no words", p, m[1])
			}
		}
		if strings.HasSuffix(p, ".go") {
			for _, m := range key.FindAllSubmatch(text, -1) {
				used[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	codes, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range slices.Sorted(maps.Keys(all["en"])) {
		if code, ok := strings.CutPrefix(k, "error."); ok && strings.ToUpper(code) == code {
			if !strings.Contains(string(codes), "| "+code+" |") {
				t.Errorf("%s is about a code that nobody has", k)
			}
			continue
		}
		if !used[k] {
			t.Errorf("nobody uses %s", k)
		}
	}
	for k := range used {
		if set, _, _ := strings.Cut(k, "."); sets[set] != nil && all["en"][k] == "" {
			t.Errorf("%s has no words", k)
		}
	}
}

func TestLanguageIsChosen(t *testing.T) {
	t.Parallel()
	s, err := New("c1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ asked, kept, accepted, want string }{
		{"", "", "", "en"},
		{"", "", "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"},
		{"", "", "en-GB,zh;q=0.9", "en"},
		{"", "", "de-DE,de;q=0.9", "en"},
		{"", "", "de, zh-TW;q=0.5, en;q=0.2", "zh-Hans"},
		{"", "", "zh;q=0, en;q=0.1", "en"},
		{"", "", "zh;q=x,;;;,", "en"},
		{"", "zh-Hans", "en", "zh-Hans"},
		{"en", "zh-Hans", "zh", "en"},
		{"xx", "yy", "zh", "zh-Hans"},
	} {
		if got := s.language(tc.asked, tc.kept, tc.accepted); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

func TestMoneyIsReadAndWrittenExactly(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text, currency string
		amount         int64
	}{
		{"12.5", "CNY", 1250}, {"12.50", "CNY", 1250}, {"0.01", "CNY", 1}, {"100", "JPY", 100}, {"1.234", "KWD", 1234}, {"007", "EUR", 700},
		{"", "CNY", 0}, {".5", "CNY", 0}, {"5.", "CNY", 0}, {"1.234", "CNY", 0}, {"1.0", "JPY", 0}, {"-1", "CNY", 0}, {"+1", "CNY", 0}, {"1e3", "CNY", 0},
		{"0", "CNY", 0}, {"0.00", "CNY", 0}, {"1,5", "CNY", 0}, {"１", "CNY", 0}, {"1.2.3", "CNY", 0}, {"9999999999999", "KWD", 0},
	} {
		got, ok := minor(tc.text, tc.currency)
		if got != tc.amount && ok || ok != (tc.amount > 0) {
			t.Errorf("minor(%q, %s) = %d, %v, want %d", tc.text, tc.currency, got, ok, tc.amount)
		}
	}
	for _, tc := range []struct {
		amount   int64
		currency string
		want     string
	}{{0, "CNY", "0.00"}, {5, "CNY", "0.05"}, {1250, "USD", "12.50"}, {100, "JPY", "100"}, {1, "KWD", "0.001"}, {-1250, "CNY", "-12.50"}} {
		if got := decimal(tc.amount, tc.currency); got != tc.want {
			t.Errorf("decimal(%d, %s) = %s, want %s", tc.amount, tc.currency, got, tc.want)
		}
	}
}
