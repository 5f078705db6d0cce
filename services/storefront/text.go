package storefront

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// languages that the shop speaks, the default first.
var languages = []string{"en", "zh-Hans"}

// words are the texts of a language by key; %s and %d stand for what is put in.
type words map[string]string

func readWords() (map[string]words, error) {
	out := map[string]words{}
	for _, l := range languages {
		raw, err := files.ReadFile("words/" + l + ".json")
		if err != nil {
			return nil, err
		}
		var w words
		if err := json.Unmarshal(raw, &w); err != nil {
			return nil, fmt.Errorf("words of %s: %w", l, err)
		}
		out[l] = w
	}
	return out, nil
}

// text gives the words for a key. A key without words is a mistake that a test
// finds; people see the key then.
func (s *Shop) text(lang, key string, args ...any) string {
	w, ok := s.words[lang][key]
	switch {
	case !ok:
		return key
	case len(args) == 0:
		return w
	}
	return fmt.Sprintf(w, args...)
}

func (s *Shop) has(key string) bool {
	_, ok := s.words[languages[0]][key]
	return ok
}

func (v *visit) text(key string, args ...any) string { return v.shop.text(v.lang, key, args...) }

// language chooses: what is asked for, else what was chosen before, else the best
// of what the browser accepts.
func (s *Shop) language(asked, kept, accepted string) string {
	for _, l := range []string{asked, kept} {
		if slices.Contains(languages, l) {
			return l
		}
	}
	return accept(accepted)
}

// accept reads an Accept-Language header. Any Chinese is answered in simplified
// characters, any other language that isn't spoken here is passed over.
func accept(header string) string {
	type wish struct {
		lang string
		q    float64
	}
	var wishes []wish
	for part := range strings.SplitSeq(header, ",") {
		tag, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				continue
			}
			q = v
		}
		base, _, _ := strings.Cut(strings.ToLower(tag), "-")
		switch {
		case q <= 0:
		case base == "zh":
			wishes = append(wishes, wish{"zh-Hans", q})
		case base == "en" || base == "*":
			wishes = append(wishes, wish{"en", q})
		}
	}
	if len(wishes) == 0 {
		return languages[0]
	}
	return slices.MaxFunc(wishes, func(a, b wish) int { return cmp.Compare(a.q, b.q) }).lang
}

// digits of a currency behind the point.
func digits(currency string) int {
	switch currency {
	case "JPY":
		return 0
	case "KWD":
		return 3
	}
	return 2
}

// decimal writes minor units as people do.
func decimal(amount int64, currency string) string {
	n := digits(currency)
	s := strconv.FormatInt(amount, 10)
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	if n == 0 {
		return sign + s
	}
	for len(s) <= n {
		s = "0" + s
	}
	return sign + s[:len(s)-n] + "." + s[len(s)-n:]
}

// minor reads what a person typed, such as 12.5, as minor units: no float, no
// rounding, no sign, and more than nothing.
func minor(text, currency string) (int64, bool) {
	whole, part, point := strings.Cut(text, ".")
	n := digits(currency)
	if whole == "" || point && part == "" || len(part) > n || len(whole) > 12 {
		return 0, false
	}
	all := whole + part + strings.Repeat("0", n-len(part))
	for _, r := range all {
		if r < '0' || r > '9' {
			return 0, false
		}
	}
	v, err := strconv.ParseInt(all, 10, 64)
	return v, err == nil && v > 0
}

// currencies that a wallet may have.
var currencies = []string{"CNY", "USD", "EUR", "JPY", "KWD"}
