package transfer

import (
	"fmt"
	"strconv"
	"strings"
)

// DefaultCurrency counts where none is given.
const DefaultCurrency = "CNY"

// Currencies lists what is taken. The database has the same list
// (cell.minor_digits) and refuses the others by itself.
func Currencies() []string { return []string{"CNY", "USD", "EUR", "JPY", "KWD"} }

// Digits gives how many digits a currency's amounts have behind the point; false
// for a currency that isn't taken. Amounts are whole numbers of the smallest unit.
func Digits(currency string) (int, bool) {
	switch currency {
	case "JPY":
		return 0, true
	case "CNY", "USD", "EUR":
		return 2, true
	case "KWD":
		return 3, true
	}
	return 0, false
}

// ValidCurrency says whether a currency is accepted.
func ValidCurrency(c string) bool {
	_, ok := Digits(c)
	return ok
}

// ParseLimits reads limits written as CNY=5000000: of each transfer, and of a day.
func ParseLimits(each, day []string) (map[string]Limits, error) {
	out := map[string]Limits{}
	for i, list := range [][]string{each, day} {
		seen := map[string]bool{}
		for _, text := range list {
			c, number, _ := strings.Cut(text, "=")
			n, err := strconv.ParseInt(number, 10, 64)
			switch {
			case !ValidCurrency(c) || err != nil || n <= 0:
				return nil, fmt.Errorf("%q is no limit such as CNY=5000000", text)
			case seen[c]:
				return nil, fmt.Errorf("%s has two limits", c)
			}
			seen[c] = true
			l := out[c]
			if i == 0 {
				l.Each = n
			} else {
				l.Day = n
			}
			out[c] = l
		}
	}
	return out, nil
}
