package userapi

import "strings"

// CanonicalPhone brings an international number to its digits: +86 138-0000-0001
// and 008613800000001 are both 8613800000001. Without a country nobody knows
// whose number it is, so that is refused: one phone must have one form.
func CanonicalPhone(s string) (string, bool) {
	if len(s) > 40 {
		return "", false
	}
	s = strings.TrimSpace(s)
	s, plus := strings.CutPrefix(s, "+")
	if !plus {
		var zeros bool
		if s, zeros = strings.CutPrefix(s, "00"); !zeros {
			return "", false
		}
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9':
			b.WriteRune(r)
		case r == ' ' || r == '-' || r == '.' || r == '(' || r == ')':
		default:
			return "", false
		}
	}
	d := b.String()
	return d, len(d) >= 8 && len(d) <= 15 && d[0] != '0'
}
