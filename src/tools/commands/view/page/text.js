// SPDX-License-Identifier: MIT
// Numbers in the format of src/tools/output/amount.h.
const Text = (() => {
  const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function bytes(number) {
    let at = 0;
    const sign = number < 0 ? "-" : "";
    number = Math.abs(number);
    for (; number >= 1024 && at < UNITS.length - 1; at++) number /= 1024;
    return `${sign}${at === 0 ? count(number) : decimal(number)} ${UNITS[at]}`;
  }

  // Format a round number of bytes, such as "256 MiB" or "1.5 GiB".
  function byteTick(number) {
    const at = number < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(number) / 10));
    return number === 0 ? "0" : `${Number((number / 1024 ** at).toFixed(3))} ${UNITS[at]}`;
  }

  function duration(us) {
    if (us < 1000) return `${us} us`;
    if (us < 1e6) return `${(us / 1000).toFixed(1)} ms`;
    if (us < 6e7) return `${(us / 1e6).toFixed(2)} s`;
    return `${(us / 6e7).toFixed(1)} min`;
  }

  const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  const decimal = (number) => number.toFixed(2).replace(/\B(?=(\d{3})+\.)/g, ",");
  const hex = (number) => "0x" + number.toString(16);
  return { bytes, byteTick, duration, count, hex };
})();
